"""Options of all agents that are compared; those of one algorithm mean the same.

Options of other software have its own names. Only what has no name there has Engram's, and
`rivals` translates it.
"""

# Engram

DQN = {
    "hidden_size": 128,
    "batch_size": 32,
    "target_update_interval": 100,
    "learning_starts": 100,
}
MBECPP = DQN | {"num_neighbours": 15, "memory_size": 3_000}
MBEC = {
    name: MBECPP[name]
    for name in ("batch_size", "learning_starts", "num_neighbours", "memory_size")
}
MFEC = {"num_neighbours": 11, "memory_size": 10_000}
NEC = {
    "hidden_size": 64,
    "key_size": 64,
    "batch_size": 32,
    "train_frequency": 4,
    "learning_starts": 100,
    "num_neighbours": 50,
    "memory_size": 10_000,
    "n_step": 100,
}
DRQN = {
    "hidden_size": 128,
    "lstm_size": 128,
    "batch_size": 16,
    "sequence_length": 8,
    "train_frequency": 2,
    "learning_starts": 100,
    "target_update_interval": 100,
}
ROLLOUT = 256
"""steps of all environments between two updates of PPO"""
PPO = {
    "hidden_size": 64,
    "num_steps": ROLLOUT,
    "update_epochs": 10,
    "num_minibatches": 4,
    "learning_rate": 1e-3,
    "anneal_lr": False,
}
PPO_LSTM = PPO | {"recurrent": True, "lstm_size": 64, "sequence_length": 32}

# Other software

SB3_DQN = {
    "learning_rate": 5e-4,
    "batch_size": 32,
    "train_freq": 1,
    "gradient_steps": 1,
    "target_update_interval": 100,
    "learning_starts": 100,
    "buffer_size": 1_000_000,
    "exploration_final_eps": 0.01,
    "policy_kwargs": {"net_arch": [128, 128]},
}
"""of SB3 and SBX"""
SB3_PPO = {
    "n_epochs": 10,
    "batch_size": ROLLOUT // 4,
    "learning_rate": 1e-3,
    "ent_coef": 0.01,
    "max_grad_norm": 0.5,
}
SB3_PPO_LSTM = SB3_PPO | {
    "policy_kwargs": {"lstm_hidden_size": 64, "net_arch": {"pi": [64], "vf": [64]}}
}
REJAX_DQN = {
    "hidden_layer_sizes": [128, 128],
    "learning_rate": 5e-4,
    "batch_size": 32,
    "fill_buffer": 100,
    "buffer_size": 10_000,
    "target_update_freq": 100,
    "num_epochs": 1,
    "ddqn": False,
}
REJAX_PPO = {
    "hidden_layer_sizes": [64, 64],
    "learning_rate": 1e-3,
    "num_epochs": 10,
    "num_minibatches": 4,
    "max_grad_norm": 0.5,
}
PFRL_DRQN = DRQN | {"buffer_size": 10_000, "learning_rate": 5e-4}
MEMORAX_DRQN = {
    "hidden_size": 128,
    "lstm_size": 128,
    "sequence_length": 8,
    "learning_rate": 5e-4,
    "max_grad_norm": 10.0,
    "batch_size": 16,
    "buffer_size": 10_000,
    "tau": 1.0,
    "target_network_frequency": 100,
    "train_frequency": 2,
    "learning_starts": 100,
    "start_e": 1.0,
    "end_e": 0.01,
    "exploration_fraction": 0.1,
}
MEMORAX_PPO_LSTM = {
    "hidden_size": 64,
    "lstm_size": 64,
    "sequence_length": 32,
    "learning_rate": 1e-3,
    "max_grad_norm": 0.5,
    "num_minibatches": 4,
    "update_epochs": 10,
    "gae_lambda": 0.95,
    "normalize_advantage": True,
    "clip_coef": 0.2,
    "clip_vloss": False,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
}
COACH_NEC = NEC | {"learning_rate": 5e-4}
