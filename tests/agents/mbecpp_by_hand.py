"""Small MBEC++ agents, and states of them whose values can be computed by hand."""

import copy
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from probes import constant_network

from engram.agents import make
from engram.episodic.trajectory_model import RewardModel
from engram.types import Spec

SPEC = Spec((2,), 2, max_episode_steps=10, num_iterations=20)
SMALL = {"gamma": 0.5, "batch_size": 2, "num_neighbours": 1, "memory_size": 4, "chunk": 2}
SMALL |= {"trajectory_dim": 2, "hidden_size": 2, "learning_starts": 1}
TWO_ROWS = jnp.int32(2)
"""the iteration after which replay holds two transitions"""


def small_mbecpp(**options):
    """MBEC++ with the paper's options and small networks."""
    return make("mbec++", "paper", **SMALL | options)


def with_options(agent, options):
    """The agent with other numbers, which may be traced: one program serves all of them."""
    agent = copy.copy(agent)
    for name, value in options.items():
        object.__setattr__(agent, name, value)
    return agent


@cache
def initial_state(q_uses_tau=False):
    """The state of a new agent, which depends on no other option."""
    agent = small_mbecpp(q_uses_tau=q_uses_tau)
    return jax.jit(lambda: agent.init(jax.random.key(3), SPEC))()


def constant_params(params, q, beta):
    """Networks that give these values of both actions and this weight of the memory."""
    logit = float(np.log(beta / (1 - beta)))
    q, beta = constant_network(params.q, q), constant_network(params.beta, [logit])
    return params._replace(q=q, beta=beta)


def state_by_hand(beta=0.5, target_beta=None, q=(2.0, 4.0), q_uses_tau=False):
    """r is 1/2, every read is 10, Q_theta is (2, 4) or `q`, and of the target network (1, 3)."""
    state = initial_state(q_uses_tau)
    episodic = state.episodic
    memory = episodic.memory._replace(values=jnp.full(4, 10.0), num_inserted=jnp.int32(1))
    reward_model = RewardModel(constant_network(episodic.reward_model.network, [0.5]))
    return state._replace(
        params=constant_params(state.params, q, beta),
        target_params=constant_params(state.params, (1.0, 3.0), target_beta or beta),
        episodic=episodic._replace(memory=memory, reward_model=reward_model),
    )


def with_two_memories(state):
    """The state with two memories of the values 0 and 10: their maximum is not their mean."""
    memory = state.episodic.memory
    memory = memory._replace(
        keys=memory.keys.at[1].set(0.1),
        values=jnp.array([0.0, 10.0, 0.0, 0.0]),
        num_inserted=jnp.int32(2),
    )
    return state._replace(episodic=state.episodic._replace(memory=memory))


def with_two_rows(state, reward, terminal=(0.0, 0.0), **rows):
    """The state with two transitions of action 0 in replay, and other fields of these rows."""
    rows = {"reward": reward, "terminal": terminal, "done": terminal} | rows
    changed = {
        name: getattr(state.replay, name).at[:2, 0].set(jnp.array(values))
        for name, values in rows.items()
    }
    return state._replace(replay=state.replay._replace(**changed))
