"""Other software, set up like ours: each builder gives a function that trains so many steps of each environment of each run.

Runs under the others' Pythons, of which one is old: no syntax that Python 3.7 lacks, and each is imported only where it is asked for.
"""

from importlib import import_module

EPISODE = 200
"""steps at most, as in Engram's Cart Pole"""


def baselines(contender):
    """Stable-Baselines3; SBX, which is the same in JAX; and the recurrent agents of sb3-contrib."""
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    module, kind, policy = {
        ("sb3", "dqn"): ("stable_baselines3", "DQN", "MlpPolicy"),
        ("sb3", "ppo"): ("stable_baselines3", "PPO", "MlpPolicy"),
        ("sbx", "dqn"): ("sbx", "DQN", "MlpPolicy"),
        ("sbx", "ppo"): ("sbx", "PPO", "MlpPolicy"),
        ("sb3-contrib", "ppo"): ("sb3_contrib", "RecurrentPPO", "MlpLstmPolicy"),
    }[contender.software, contender.agent]
    env = make_vec_env("CartPole-v1", contender.envs, env_kwargs={"max_episode_steps": EPISODE})
    model = getattr(import_module(module), kind)(policy, env, device="cpu", **contender.options)

    def train(iterations):
        model.learn(iterations * contender.envs, reset_num_timesteps=False)

    return train, ("stable-baselines3", "sb3-contrib", "sbx-rl", "torch", "jax", "gymnasium")


def pfrl(contender):
    """PFRL's recurrent DQN. Its own loops know only an older Gym, so the loop is here, and does no more than they must."""
    import gymnasium as gym
    import numpy as np
    import torch
    from pfrl import agents, explorers, nn, q_functions, replay_buffers

    torch.set_num_threads(1)
    o, env = contender.options, gym.make("CartPole-v1", max_episode_steps=EPISODE)
    layers = torch.nn.Linear(4, o["hidden"]), torch.nn.ReLU(), torch.nn.LSTM(o["hidden"], o["lstm"]), torch.nn.Linear(o["lstm"], 2)
    network = nn.RecurrentSequential(*layers, q_functions.DiscreteActionValueHead())
    agent = agents.DQN(
        network,
        torch.optim.Adam(network.parameters(), lr=o["learning_rate"]),
        replay_buffers.EpisodicReplayBuffer(o["replay"]),
        0.99,
        explorers.LinearDecayEpsilonGreedy(1.0, 0.01, 1_000, env.action_space.sample),
        replay_start_size=o["learn_start"],
        minibatch_size=o["batch"],
        update_interval=o["learn_every"],
        target_update_interval=o["target_every"],
        recurrent=True,
        episodic_update_len=o["sequence"],
        phi=lambda seen: np.asarray(seen, np.float32),
    )
    here = [env.reset(seed=0)[0]]

    def train(iterations):
        for _ in range(iterations):
            seen, reward, terminated, truncated, _ = env.step(agent.step(here[0]))
            agent.observe(seen, reward, terminated, truncated)
            here[0] = env.reset()[0] if terminated or truncated else seen

    return train, ("pfrl", "torch", "gymnasium")


def _pole():
    """Cart Pole of Gymnax, for what is all in JAX."""
    import gymnax

    env, params = gymnax.make("CartPole-v1")
    return {"env": env, "env_params": params.replace(max_steps_in_episode=EPISODE)}


def _compiled(runs, init, advance):
    """Trains many runs in one program, as Engram does; `advance` takes a state and a number of iterations that is known beforehand."""
    import jax

    step = jax.jit(lambda states, n: jax.vmap(lambda state: advance(state, n))(states), static_argnums=1, donate_argnums=0)
    states = [jax.jit(jax.vmap(init))(jax.random.split(jax.random.key(0), runs))]

    def train(iterations):
        states[0] = step(states[0], iterations)
        jax.block_until_ready(states[0])

    return train


def rejax(contender):
    import jax
    from flax import linen
    from rejax import DQN, PPO
    from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy

    o = dict(contender.options)
    hidden = o.pop("hidden")
    more = {"num_envs": contender.envs, "total_timesteps": 10**9, "eval_freq": 10**9}
    if contender.agent == "ppo":
        agent, rows = PPO.create(**_pole(), **more, agent_kwargs={"hidden_layer_sizes": hidden, "activation": "tanh"}, **o), o["num_steps"]
    else:
        # Its DQN has no option for the width of the network.
        network = EpsilonGreedyPolicy(DiscreteQNetwork)(hidden_layer_sizes=hidden, action_dim=2, activation=linen.relu)
        agent, rows = DQN.create(**_pole(), **more, **o).replace(agent=network), 1

    def advance(state, iterations):
        return jax.lax.fori_loop(0, iterations // rows, lambda _, state: agent.train_iteration(state), state)

    return _compiled(contender.runs, agent.init_state, advance), ("rejax", "gymnax", "jax", "flax")


def memorax(contender):
    """Memorax, whose DQN and PPO become recurrent by the network they are given."""
    import flashbax
    import optax
    from flax import linen
    from memorax import algorithms
    from memorax.networks import MLP, RNN, FeatureExtractor, Network, heads

    o = dict(contender.options)
    hidden, lstm, rate, clip, sequence = (o.pop(name) for name in ("hidden", "lstm", "learning_rate", "clip", "sequence"))
    adam = optax.chain(optax.clip_by_global_norm(clip), optax.adam(rate))
    activation = linen.tanh if contender.agent == "ppo" else linen.relu

    def network(head):
        seen = FeatureExtractor(observation_extractor=MLP(features=(hidden,), activation=activation))
        return Network(seen, RNN(cell=linen.LSTMCell(lstm)), head)

    common = {"name": "", "num_envs": contender.envs, "num_eval_envs": 1, "gamma": 0.99}
    pole = _pole()
    if contender.agent == "ppo":
        config = algorithms.PPOConfig(**common, num_steps=sequence, **o)
        agent = algorithms.PPO(config, *pole.values(), network(heads.Categorical(2)), network(heads.VNetwork()), adam, adam)
    else:
        config = algorithms.DQNConfig(**common, learning_rate=rate, **o)
        # Flashbax's buffer of trajectories: that of Memorax itself goes through all of its places in every draw.
        buffer = flashbax.make_trajectory_buffer(
            add_batch_size=contender.envs,
            sample_batch_size=config.batch_size,
            sample_sequence_length=sequence,
            period=1,
            min_length_time_axis=sequence,
            max_length_time_axis=config.buffer_size,
        )
        epsilon = optax.linear_schedule(config.start_e, config.end_e, 1_000)
        agent = algorithms.DQN(config, *pole.values(), network(heads.DiscreteQNetwork(2)), adam, buffer, epsilon)

    def init(key):
        return agent.warmup(*agent.init(key), o["learning_starts"]) if "learning_starts" in o else agent.init(key)

    def advance(state, iterations):
        return agent.train(*state, iterations * contender.envs)[:2]

    return _compiled(contender.runs, init, advance), ("memorax", "flashbax", "gymnax", "jax", "flax")


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
    network.learning_rate, network.batch_size = o["learning_rate"], o["batch"]
    network.input_embedders_parameters = {"observation": InputEmbedderParameters(scheme=[Dense(o["hidden"])])}
    network.middleware_parameters = FCMiddlewareParameters(scheme=[Dense(o["embedding"])])
    agent.memory.max_size = (MemoryGranularity.Transitions, contender.replay)
    agent.algorithm.dnd_size, agent.algorithm.number_of_knn = o["slots"], o["neighbours"]
    agent.algorithm.n_step, agent.algorithm.propagate_updates_to_DND = o["horizon"], True
    agent.algorithm.num_consecutive_playing_steps = EnvironmentSteps(o["learn_every"])
    graph = BasicRLGraphManager(agent, GymVectorEnvironment("CartPole-v0"), SimpleSchedule())  # v0: cut at 200 steps
    graph.create_graph(TaskParameters())
    graph.heatup(EnvironmentSteps(o["learn_start"]))
    if contender.memory == "full":
        dictionary = graph.get_agent().networks["main"].online_network.output_heads[0].DND
        places = 2 * o["slots"]
        dictionary.add(np.random.uniform(-1, 1, (places, o["embedding"])), np.arange(places) % 2, np.random.uniform(0, 100, places))

    def train(iterations):
        graph.train_and_act(EnvironmentSteps(iterations))

    return train, ("rl-coach", "tensorflow", "annoy", "gym")


BUILDERS = {"sb3": baselines, "sbx": baselines, "sb3-contrib": baselines, "pfrl": pfrl, "rejax": rejax, "memorax": memorax, "coach": coach}
