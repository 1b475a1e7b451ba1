"""Other software with Engram's settings.

Each builder returns a function that trains for a number of steps of each environment of each run,
and the packages whose versions matter. Runs under the Pythons of the other software, of which one
is old: no syntax that Python 3.7 lacks, and each package is imported only where it is needed.
"""

from importlib import import_module

MAX_EPISODE_STEPS = 200
"""as in Engram's Cart Pole"""
SB3_CLASSES = {
    ("sb3", "dqn"): ("stable_baselines3", "DQN", "MlpPolicy"),
    ("sb3", "ppo"): ("stable_baselines3", "PPO", "MlpPolicy"),
    ("sbx", "dqn"): ("sbx", "DQN", "MlpPolicy"),
    ("sbx", "ppo"): ("sbx", "PPO", "MlpPolicy"),
    ("sb3-contrib", "ppo"): ("sb3_contrib", "RecurrentPPO", "MlpLstmPolicy"),
}
"""module, class and policy"""


def sb3(contender):
    """Stable-Baselines3, SBX (the same in JAX), and the recurrent agents of sb3-contrib."""
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    module, class_name, policy = SB3_CLASSES[contender.software, contender.agent]
    env_kwargs = {"max_episode_steps": MAX_EPISODE_STEPS}
    env = make_vec_env("CartPole-v1", contender.envs, env_kwargs=env_kwargs)
    agent_class = getattr(import_module(module), class_name)
    model = agent_class(policy, env, device="cpu", **contender.options)

    def train(iterations):
        model.learn(iterations * contender.envs, reset_num_timesteps=False)

    return train, ("stable-baselines3", "sb3-contrib", "sbx-rl", "torch", "jax", "gymnasium")


def pfrl(contender):
    """PFRL's recurrent DQN, called by a loop of ours, since its own loops need an older Gym."""
    import gymnasium as gym
    import numpy as np
    import torch
    from pfrl import agents, explorers, nn, q_functions, replay_buffers

    torch.set_num_threads(1)
    o = contender.options
    env = gym.make("CartPole-v1", max_episode_steps=MAX_EPISODE_STEPS)
    network = nn.RecurrentSequential(
        torch.nn.Linear(4, o["hidden_size"]),
        torch.nn.ReLU(),
        torch.nn.LSTM(o["hidden_size"], o["lstm_size"]),
        torch.nn.Linear(o["lstm_size"], 2),
        q_functions.DiscreteActionValueHead(),
    )
    agent = agents.DQN(
        network,
        torch.optim.Adam(network.parameters(), lr=o["learning_rate"]),
        replay_buffers.EpisodicReplayBuffer(o["buffer_size"]),
        0.99,
        explorers.LinearDecayEpsilonGreedy(1.0, 0.01, 1_000, env.action_space.sample),
        replay_start_size=o["learning_starts"],
        minibatch_size=o["batch_size"],
        update_interval=o["train_frequency"],
        target_update_interval=o["target_update_interval"],
        recurrent=True,
        episodic_update_len=o["sequence_length"],
        phi=lambda obs: np.asarray(obs, np.float32),
    )
    last_obs = [env.reset(seed=0)[0]]

    def train(iterations):
        for _ in range(iterations):
            obs, reward, terminated, truncated, _ = env.step(agent.act(last_obs[0]))
            agent.observe(obs, reward, terminated, truncated)
            last_obs[0] = env.reset()[0] if terminated or truncated else obs

    return train, ("pfrl", "torch", "gymnasium")


def rejax(contender):
    """Rejax's DQN and PPO."""
    import jax
    from flax import linen
    from rejax import DQN, PPO
    from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy

    o = dict(contender.options)
    hidden = o.pop("hidden_layer_sizes")
    common = dict(_gymnax_cart_pole(), num_envs=contender.envs)
    common.update(total_timesteps=10**9, eval_freq=10**9)
    if contender.agent == "ppo":
        agent_kwargs = {"hidden_layer_sizes": hidden, "activation": "tanh"}
        agent = PPO.create(agent_kwargs=agent_kwargs, **common, **o)
        steps_per_iteration = o["num_steps"]
    else:
        # Its DQN has no option for the size of the network.
        network = EpsilonGreedyPolicy(DiscreteQNetwork)(
            hidden_layer_sizes=hidden, action_dim=2, activation=linen.relu
        )
        agent = DQN.create(**common, **o).replace(agent=network)
        steps_per_iteration = 1

    def advance(state, iterations):
        count = iterations // steps_per_iteration
        return jax.lax.fori_loop(0, count, lambda _, state: agent.train_iteration(state), state)

    train = _train_compiled(contender.runs, agent.init_state, advance)
    return train, ("rejax", "gymnax", "jax", "flax")


def memorax(contender):
    """Memorax's DQN and PPO, which are recurrent if their network is."""
    import flashbax
    import optax
    from flax import linen
    from memorax import algorithms
    from memorax.networks import MLP, RNN, FeatureExtractor, Network, heads

    o = dict(contender.options)
    names = ("hidden_size", "lstm_size", "sequence_length", "learning_rate", "max_grad_norm")
    hidden_size, lstm_size, sequence_length, learning_rate, max_grad_norm = map(o.pop, names)
    adam = optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(learning_rate))
    activation = linen.tanh if contender.agent == "ppo" else linen.relu

    def network(head):
        layer = MLP(features=(hidden_size,), activation=activation)
        extractor = FeatureExtractor(observation_extractor=layer)
        return Network(extractor, RNN(cell=linen.LSTMCell(lstm_size)), head)

    common = {"name": "", "num_envs": contender.envs, "num_eval_envs": 1, "gamma": 0.99}
    env = tuple(_gymnax_cart_pole().values())
    if contender.agent == "ppo":
        config = algorithms.PPOConfig(num_steps=sequence_length, **common, **o)
        networks = network(heads.Categorical(2)), network(heads.VNetwork())
        agent = algorithms.PPO(config, *env, *networks, adam, adam)
    else:
        config = algorithms.DQNConfig(learning_rate=learning_rate, **common, **o)
        # Flashbax's buffer, since Memorax's own goes through all of its rows for every sample.
        buffer = flashbax.make_trajectory_buffer(
            add_batch_size=contender.envs,
            sample_batch_size=config.batch_size,
            sample_sequence_length=sequence_length,
            period=1,
            min_length_time_axis=sequence_length,
            max_length_time_axis=config.buffer_size,
        )
        epsilon = optax.linear_schedule(config.start_e, config.end_e, 1_000)
        q_network = network(heads.DiscreteQNetwork(2))
        agent = algorithms.DQN(config, *env, q_network, adam, buffer, epsilon)

    def init(key):
        state = agent.init(key)
        return agent.warmup(*state, o["learning_starts"]) if "learning_starts" in o else state

    def advance(state, iterations):
        return agent.train(*state, iterations * contender.envs)[:2]

    train = _train_compiled(contender.runs, init, advance)
    return train, ("memorax", "flashbax", "gymnax", "jax", "flax")


def coach(contender):
    """Coach's neural episodic control."""
    import numpy as np
    from rl_coach.agents.nec_agent import NECAgentParameters
    from rl_coach.architectures.embedder_parameters import InputEmbedderParameters
    from rl_coach.architectures.layers import Dense
    from rl_coach.architectures.middleware_parameters import FCMiddlewareParameters
    from rl_coach.base_parameters import TaskParameters
    from rl_coach.core_types import EnvironmentSteps
    from rl_coach.environments.gym_environment import GymVectorEnvironment
    from rl_coach.graph_managers.basic_rl_graph_manager import BasicRLGraphManager
    from rl_coach.graph_managers.graph_manager import SimpleSchedule
    from rl_coach.memories.memory import MemoryGranularity

    o, agent = contender.options, NECAgentParameters()
    network = agent.network_wrappers["main"]
    network.learning_rate, network.batch_size = o["learning_rate"], o["batch_size"]
    embedder = InputEmbedderParameters(scheme=[Dense(o["hidden_size"])])
    network.input_embedders_parameters = {"observation": embedder}
    network.middleware_parameters = FCMiddlewareParameters(scheme=[Dense(o["key_size"])])
    agent.memory.max_size = (MemoryGranularity.Transitions, contender.replay)
    agent.algorithm.dnd_size = o["memory_size"]
    agent.algorithm.number_of_knn = o["num_neighbours"]
    agent.algorithm.n_step = o["n_step"]
    agent.algorithm.propagate_updates_to_DND = True
    agent.algorithm.num_consecutive_playing_steps = EnvironmentSteps(o["train_frequency"])
    env = GymVectorEnvironment("CartPole-v0")  # v0: truncated after 200 steps
    graph = BasicRLGraphManager(agent, env, SimpleSchedule())
    graph.create_graph(TaskParameters())
    graph.heatup(EnvironmentSteps(o["learning_starts"]))
    if contender.memory == "full":
        dnd = graph.get_agent().networks["main"].online_network.output_heads[0].DND
        slots = 2 * o["memory_size"]
        keys = np.random.uniform(-1, 1, (slots, o["key_size"]))
        dnd.add(keys, np.arange(slots) % 2, np.random.uniform(0, 100, slots))

    def train(iterations):
        graph.train_and_act(EnvironmentSteps(iterations))

    return train, ("rl-coach", "tensorflow", "annoy", "gym")


def _gymnax_cart_pole():
    """Cart Pole in JAX."""
    import gymnax

    env, params = gymnax.make("CartPole-v1")
    return {"env": env, "env_params": params.replace(max_steps_in_episode=MAX_EPISODE_STEPS)}


def _train_compiled(runs, init, advance):
    """Trains many runs in one program, as Engram does.

    `advance` maps a state and a number of iterations, which is a constant, to the next state.
    """
    import jax

    def advance_all(states, iterations):
        return jax.vmap(lambda state: advance(state, iterations))(states)

    compiled = jax.jit(advance_all, static_argnums=1, donate_argnums=0)
    states = [jax.jit(jax.vmap(init))(jax.random.split(jax.random.key(0), runs))]

    def train(iterations):
        states[0] = compiled(states[0], iterations)
        jax.block_until_ready(states[0])

    return train


BUILDERS = {
    "sb3": sb3,
    "sbx": sb3,
    "sb3-contrib": sb3,
    "pfrl": pfrl,
    "rejax": rejax,
    "memorax": memorax,
    "coach": coach,
}
"""by software"""
