"""Both drivers tell agents the truth, runs do not disturb each other, and a broken environment is named."""

import math
from dataclasses import replace

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Diary, Tape

from engram import loop
from engram.agents import DQN, MBECpp, Random
from engram.errors import EngramError
from engram.loop.program import earn
from engram.tasks import CartPole, Task, find
from engram.types import Spec, TimeStep

CART = find("cartpole")
CART_SPEC = Spec((4,), 2, limit=200, limit_ends=True, iterations=200)
SMALL = {"batch": 4, "neighbours": 2, "slots": 32, "chunk": 2, "trajectory": 4, "hidden": 8, "reward_hidden": 8, "cues": 2}


def tape_task(**options):
    return Task("tape", "", lambda: Tape(**options))


def run(kind, agent, tasks, seeds, spec, iterations=None):
    driver = kind(agent, tasks, seeds, spec)
    driver.start()
    return driver, driver.advance(spec.iterations if iterations is None else iterations)


def told(driver):
    """The diaries of all runs."""
    return {name: np.asarray(page) for name, page in driver.carry.agent.items()}


def same_told(a, b, runs_of_a=slice(None), runs_of_b=slice(None)):
    for name in a:
        np.testing.assert_array_equal(a[name][runs_of_a], b[name][runs_of_b], err_msg=name)


# Seeds


@pytest.fixture(scope="module")
def noisy():
    """Three runs of a diary on noisy Cart Pole, in JAX."""
    return run(loop.Scan, Diary(), [find("cartpole-gaussian")] * 3, [7, 8, 9], CART_SPEC)


def test_seeds_differ_in_beginnings_noise_and_draws(noisy):
    pages = told(noisy[0])
    for name in ("observation", "reward", "lot"):
        assert not np.any(np.all(pages[name][0, 1:] == pages[name][1, 1:])), name
    assert len(np.unique(pages["lot"])) == pages["lot"].size  # no random number is ever drawn twice


def test_a_seed_alone_sees_exactly_what_it_sees_among_others(noisy):
    alone, returns = run(loop.Scan, Diary(), [find("cartpole-gaussian")], [8], CART_SPEC)
    same_told(told(alone), told(noisy[0]), 0, 1)
    np.testing.assert_array_equal(returns[:, 0], noisy[1][:, 1])


@pytest.mark.parametrize("agent", [DQN(batch=4, hidden=8), MBECpp(**SMALL)], ids=["dqn", "mbec++"])
def test_a_seed_learns_alone_what_it_learns_among_others(agent):
    together, returns = run(loop.Scan, agent, [CART] * 3, [5, 6, 7], CART_SPEC, 120)
    alone, own = run(loop.Scan, agent, [CART], [6], CART_SPEC, 120)
    np.testing.assert_array_equal(own[:, 0], returns[:, 1])
    state, single = (x.carry.agent for x in (together, alone))
    learnt = (lambda s: s.q) if isinstance(agent, DQN) else (lambda s: (s.semantic, s.life.mind.trajectory, s.life.mind.memory))
    for a, b in zip(jax.tree.leaves(learnt(state)), jax.tree.leaves(learnt(single)), strict=True):
        np.testing.assert_allclose(a[1], b[0], atol=2e-3, rtol=2e-3)
        if a.ndim > 2:
            assert np.any(np.abs(a[0] - a[1]) > 1e-2)  # while other seeds are elsewhere
    means, single = together.metrics(), alone.metrics()
    for name in means:
        assert means[name][1] == pytest.approx(single[name][0], rel=1e-2, abs=1e-3), name


def test_runs_may_differ_in_their_noise():
    driver, returns = run(loop.Scan, Diary(), [CART, find("cartpole-bernoulli")], [3, 3], CART_SPEC)
    pages = told(driver)
    np.testing.assert_array_equal(pages["observation"][0], pages["observation"][1])
    assert set(pages["reward"][0, 1:].ravel()) == {1.0}
    assert 0.1 < np.mean(pages["reward"][1, 1:] == -1.0) < 0.3
    np.testing.assert_array_equal(returns[:, 0], returns[:, 1])  # scores are un-noised


# What agents are told


def check_episodes(pages, returns, limit):
    """In a diary of Cart Pole: what ended, how, and what was seen there."""
    iterations, envs = returns.shape
    for env in range(envs):
        age = 0
        for step in range(1, iterations):
            age += 1
            terminated, truncated = pages["terminated"][step, env], pages["truncated"][step, env]
            final, seen = pages["final"][step, env], pages["observation"][step, env]
            fallen = abs(final[0]) > 2.4 or abs(final[2]) > 12 * 2 * np.pi / 360
            assert (terminated, truncated) == (fallen, age == limit)
            over = terminated or truncated
            assert np.isnan(returns[step - 1, env]) != over
            assert np.array_equal(final, seen) != over
            if over:
                assert returns[step - 1, env] == age
                assert np.abs(seen).max() <= 0.05
                age = 0


def short(limit):
    dynamics = CartPole(limit=limit)
    return Task("short", "", lambda: gym.make("CartPole-v1", max_episode_steps=limit, disable_env_checker=True), dynamics=dynamics)


@pytest.mark.parametrize("limit", [6, 200])
def test_both_drivers_tell_ends_from_cuts_in_every_environment(limit):
    """Pushed to one side always, a pole falls within 8 to 11 steps."""
    spec = Spec((4,), 2, limit=limit, envs=2, iterations=60)
    for kind in (loop.Scan, loop.Host):
        driver, returns = run(kind, Diary(), [short(limit)] * 2, [1, 2], spec)
        assert returns.shape == (60, 2, 2)
        pages = told(driver)
        for r in range(2):
            check_episodes({name: page[r] for name, page in pages.items()}, returns[:, r], limit)
        assert pages["terminated"].any() == (limit == 200)
        assert pages["truncated"].any() == (limit == 6)
        beginnings = pages["observation"][:, 0].reshape(-1, 4)
        assert len(np.unique(beginnings, axis=0)) == 4  # each environment begins elsewhere


def test_the_rows_stored_know_an_end_from_a_cut():
    compiled = {}
    for cut, limit_ends, expected in ((False, False, 1.0), (True, False, 0.0), (True, True, 1.0)):
        spec = Spec((2,), 2, limit=3, limit_ends=limit_ends, iterations=8)
        driver = loop.Host(DQN(batch=2, hidden=2), [tape_task(cut=cut)], [0], spec)
        driver._act, driver._learn = compiled.setdefault(spec, (driver._act, driver._learn))
        driver.start()
        driver.advance(8)
        replay = jax.tree.map(lambda x: np.asarray(x)[0, :7, 0], driver.carry.agent.replay)
        assert replay.end.tolist() == [0, 0, expected, 0, 0, expected, 0]
        assert replay.reward.tolist() == [1, 2, 3, 1, 2, 3, 1]
        assert replay.state[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
        assert replay.next_state[:, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]  # what the action led to, not the next beginning


def test_advancing_in_parts_is_advancing_at_once(noisy):
    parts = loop.Scan(Diary(), [find("cartpole-gaussian")] * 3, [7, 8, 9], CART_SPEC)
    parts.start()
    returns = np.concatenate([parts.advance(n) for n in (150, 1, 49)])
    same_told(told(parts), told(noisy[0]))
    np.testing.assert_array_equal(returns, noisy[1])
    assert parts.iteration == 200


def test_metrics_are_means_since_they_were_last_asked():
    driver, _ = run(loop.Host, Diary(), [tape_task()] * 2, [0, 1], Spec((2,), 2, iterations=12), 4)
    means = driver.metrics()
    assert means["step"].tolist() == [1.5, 1.5]
    assert means["mean_reward"].tolist() == [1.5, 1.5]  # nothing yet, then 1, 2, 3
    driver.advance(2)
    assert driver.metrics()["step"].tolist() == [4.5, 4.5]


@pytest.mark.parametrize("kind", [loop.Scan, loop.Host])
def test_an_agent_is_traced_once_for_its_metrics_and_once_to_run(kind, monkeypatch):
    """To trace MBEC++ takes seconds, and who saves or checks sizes asks for shapes again and again."""
    traced, learn = [], DQN.learn
    monkeypatch.setattr(DQN, "learn", lambda *given: (traced.append(None), learn(*given))[1])
    task, shape = (CART, (4,)) if kind is loop.Scan else (tape_task(), (2,))
    driver, _ = run(kind, DQN(hidden=8, batch=4), [task] * 2, [1, 2], Spec(shape, 2, iterations=3))
    driver.template()
    assert set(driver.metrics()) == {"epsilon", "value", "earned", "td_loss"}
    assert len(traced) == 2


def test_what_is_earned_is_the_mean_return_from_each_step_on():
    gamma, steps, rng = 0.9, 60, np.random.default_rng(3)
    rewards, ends = rng.normal(size=(steps, 2)).astype(np.float32), rng.random((2, steps, 2)) < 0.1
    weight, earned = jnp.zeros(2), 0.0
    first = TimeStep(jnp.zeros((2, 1)), jnp.zeros(2), jnp.zeros(2, bool), jnp.zeros(2, bool), jnp.zeros((2, 1)))
    answers = [first._replace(reward=r, terminated=t, truncated=c) for r, t, c in zip(rewards, *ends, strict=True)]
    for timestep in [first, *answers]:
        weight, more = earn(gamma, weight, timestep)
        earned += float(more)
    over, returns = ends.any(axis=0), np.zeros((steps + 1, 2))
    for t in range(steps - 1, -1, -1):
        returns[t] = rewards[t] + gamma * np.where(over[t], 0.0, returns[t + 1])
    assert earned == pytest.approx(returns.mean(axis=1).sum(), rel=1e-4)


def test_agents_that_say_values_are_told_what_they_earned():
    driver, _ = run(loop.Scan, DQN(hidden=8, batch=4, gamma=0.5), [CART] * 2, [0, 1], CART_SPEC, 100)
    # Each step of Cart Pole brings 1, so that from almost all on 1 + 0.5 + 0.25 + ... are earned.
    assert driver.metrics()["earned"] == pytest.approx([1.9, 1.9], abs=0.1)
    assert "earned" not in run(loop.Scan, Random(), [CART], [0], CART_SPEC, 1)[0].metrics()


LEARNERS = {"dqn": DQN(hidden=8, batch=4), "mbec++": MBECpp(**SMALL | {"chunk": 7}, learn_start=12)}


@pytest.fixture(scope="module", params=LEARNERS)
def both_ways(request):
    """An agent's name, drivers that learnt as ever and in a thread, on the device that was chosen, the returns of both, and the steps that
    were learnt from by the program that branches."""
    agent, tasks, spec, branching = LEARNERS[request.param], [CART] * 2, CART.spec(2, 40), []
    with jax.default_device(jax.devices("cpu")[0]), pytest.MonkeyPatch.context() as patch:
        plain, returns = run(loop.Host, agent, tasks, [3, 4], spec, 40)
        patch.setattr("engram.loop.host.platform", lambda: "gpu")
        aside = loop.Host(agent, tasks, [3, 4], spec)
        aside.start()
        patch.setattr(aside, "_learn", lambda arrays, learn=aside._learn: (branching.append(aside.iteration), learn(arrays))[1])
        return request.param, (plain, aside), (returns, aside.advance(40)), branching


def test_learning_in_a_thread_of_its_own_is_learning(both_ways):
    """As where there is a GPU."""
    _, (plain, aside), returns, _ = both_ways
    assert plain.aside is plain.usual is None
    assert aside.aside is not None
    np.testing.assert_array_equal(*returns)
    for one, other in zip(plain.arrays, aside.arrays, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_most_steps_are_learnt_from_without_branches(both_ways):
    name, (_, aside), _, branching = both_ways
    # Most learn from replay; not so before learning begins, nor where a trajectory's chunk is full.
    usual, others = {"dqn": ((True,), [*range(16)]), "mbec++": ((True, False), [*range(6), 7, 14, 21, 28, 35])}[name]
    assert aside.usual == usual
    assert branching == others


def test_what_fails_while_another_thread_learns_waits_for_it(monkeypatch):
    monkeypatch.setattr("engram.loop.host.platform", lambda: "gpu")
    driver = loop.Host(DQN(hidden=8, batch=4), [find("cartpole")], [3], find("cartpole").spec(1, 40))
    driver.start()
    driver.advance(2)
    monkeypatch.setattr(driver, "_send", lambda actions: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        driver.advance(1)
    assert int(driver.carry.step) == driver.step == 3  # by which it knows what work is due


def test_what_another_life_was_shown_last_is_forgotten(monkeypatch):
    monkeypatch.setattr("engram.loop.host.platform", lambda: "gpu")
    driver, _ = run(loop.Host, Diary(), [tape_task()], [0], Spec((2,), 2, iterations=12), 2)
    driver.start()
    driver.advance(2)
    assert told(driver)["observation"][0, :2, 0, 0].tolist() == [0, 1]


def test_a_host_stops_when_told_to():
    driver = loop.Host(Random(), [tape_task()], [0], Spec((2,), 2, iterations=12))
    driver.start()
    asked = iter([False, False, True])
    assert len(driver.advance(10, lambda: next(asked))) == 3
    assert driver.iteration == int(driver.carry.step) == 3


def test_how_an_episode_begins_depends_on_the_seed_and_its_number_alone():
    def seeds(lengths, run_seeds, envs=1):
        made = []

        def make(length):
            made.append(Tape(rewards=(0.0,) * length))
            return made[-1]

        tasks = [Task("tape", "", lambda length=length: make(length)) for length in lengths]
        run(loop.Host, Random(), tasks, run_seeds, Spec((2,), 2, envs=envs, iterations=13))
        return [env.seeds for env in made]

    alone = seeds([3], [5])[0]
    among = seeds([2, 3, 4], [4, 5, 6])
    assert among[1] == alone
    assert seeds([6], [5])[0] == alone[:3]  # longer episodes, the same beginnings
    every = [seed for env in among for seed in env]
    assert len(set(every)) == len(every)
    both = seeds([3], [5], envs=2)
    assert both[0] == alone
    assert not set(both[0]) & set(both[1])


def test_the_driver_is_the_fastest_that_serves_all_tasks():
    assert isinstance(loop.driver(Random(), [CART], [0], CART_SPEC), loop.Scan)
    assert isinstance(loop.driver(Random(), [CART], [0], CART_SPEC, host=True), loop.Host)
    assert isinstance(loop.driver(Random(), [CART, short(6)], [0, 0], CART_SPEC), loop.Host)
    assert isinstance(loop.driver(Random(), [tape_task()], [0], CART_SPEC), loop.Host)


def test_every_seed_runs_on_every_task():
    assert loop.every_seed(["a", "b"], [1, 2]) == (["a", "a", "b", "b"], [1, 2, 1, 2])


# Options that differ from run to run


@pytest.mark.parametrize("kind", [loop.Scan, loop.Host])
def test_a_run_among_others_with_other_options_is_the_run_alone(kind):
    spec, task = replace(CART_SPEC, iterations=80), find("cartpole-gaussian")
    small = DQN(batch=4, hidden=4, learn_start=4)
    options = {"learning_rate": (1e-2, 1e-3), "epsilon_decay": (500, 20.0)}
    both = kind(small, [task] * 2, [7, 7], spec, options)
    both.start()
    returns = both.advance(80)
    layers = [np.asarray(layer.weight) for layer in both.carry.agent.q.layers]
    assert not np.allclose(layers[0][0], layers[0][1])
    for r in range(2):
        own = replace(small, **{name: values[r] for name, values in options.items()})
        alone, expected = run(kind, own, [task], [7], spec)
        np.testing.assert_array_equal(returns[:, r], expected[:, 0])
        for among, layer in zip(layers, alone.carry.agent.q.layers, strict=True):
            np.testing.assert_allclose(among[r], layer.weight[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"learning_rat": (1.0, 1.0)}, "DQN has no option 'learning_rat'. Did you mean learning_rate"),
        ({"learning_rate": (1e-3, -1.0)}, "learning_rate must be greater than 0, but is -1."),
        ({"learning_rate": (1e-3, "fast")}, "learning_rate must be a number, not"),
        ({"learning_rate": (1e-3,)}, "learning_rate needs one value for each of the 2 runs, not 1."),
        ({"hidden": (8, 16)}, "hidden cannot differ between the runs of one program"),
        ({"time_limit_ends": (True, False)}, "time_limit_ends cannot differ between the runs of one program"),
    ],
)
def test_options_that_cannot_differ_between_runs_are_one_sentence(options, sentence):
    with pytest.raises(EngramError) as error:
        loop.driver(DQN(), [CART] * 2, [0, 1], CART_SPEC, options=options)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


def test_an_option_that_may_be_none_is_no_plain_number():
    assert loop.may_differ(MBECpp(), "learning_rate")
    assert not loop.may_differ(MBECpp(), "fixed_beta")


def test_runs_may_ask_their_memories_more_or_less_often():
    """Whether the memory is always asked, or by lots, is no question of how often."""
    program = loop.Scan(MBECpp(p_ask=0.5), [CART] * 2, [7, 7], CART_SPEC, {"p_ask": (0.2, 0.9)}).program
    carry = jax.eval_shape(program.init, jnp.arange(2, dtype=jnp.uint32))
    jax.eval_shape(program.learn, jax.eval_shape(program.act, carry, program.blank(2))[0])


# Environments that break

FAULTS = {
    "raises": (ValueError("too\nhot."), "step raised ValueError (too hot)"),
    "nan": (lambda env, reward, over: (np.array([np.nan, 0]), reward, over, False, {}), "observation[0] is nan"),
    "shape": (lambda env, reward, over: (np.zeros(3), reward, over, False, {}), "observation has shape (3,) instead of (2,)"),
    "reward": (lambda env, reward, over: (env.seen(), math.nan, over, False, {}), "reward is nan"),
    "none": (lambda env, reward, over: (env.seen(), None, over, False, {}), "reward is None"),
    "four": (lambda env, reward, over: (env.seen(), reward, over, {}), "step"),
    "flag": (lambda env, reward, over: (env.seen(), reward, None, False, {}), "terminated is None"),
    "info": (lambda env, reward, over: (env.seen(), reward, over, False, None), "info"),
}


@pytest.fixture(scope="module")
def breakable():
    """One driver, compiled once, whose environments are exchanged for each fault."""
    return loop.Host(Diary(), [tape_task()] * 2, [3, 4], Spec((2,), 2, envs=2, iterations=12))


def broken(driver, breaks):
    """Lets the second environment of the second run break at its fifth step."""
    fresh = loop.Host(Diary(), driver.tasks, driver.seeds, driver.spec)
    fresh._act, fresh._learn = driver._act, driver._learn
    fresh.start()
    fresh.envs[1][1].breaks = breaks
    return fresh, fresh.advance(12)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_environment_is_named_with_its_seed_and_step(breakable, fault):
    answer, words = FAULTS[fault]
    driver, returns = broken(breakable, {5: answer})
    sentence = str(driver.fault)
    assert isinstance(driver.fault, EngramError)
    assert sentence.startswith("The environment tape broke with seed 4 at step 10: ")  # the fifth of two environments each
    assert words in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(returns) == 5


def test_after_a_fault_the_state_is_whole_and_goes_on(breakable):
    driver, _ = broken(breakable, {5: RuntimeError("gone")})
    assert driver.iteration == int(driver.carry.step) == 5
    now = driver.timestep
    assert now.truncated.tolist() == [[False, False], [False, True]]
    assert np.isfinite(now.observation).all()
    assert driver.episode.tolist() == [[1, 1], [1, 2]]
    tree, notes = driver.save()
    again = loop.Host(Diary(), driver.tasks, driver.seeds, driver.spec)
    again.restore(jax.tree.map(lambda x: x, tree), notes)
    again.advance(7)
    assert again.fault is None
    pages = told(again)
    assert pages["truncated"][1, 5].tolist() == [False, True]
    assert pages["observation"][1, 5:, 1, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]  # a new episode from there
    assert pages["observation"][0, 5:, 1, 0].tolist() == [2, 0, 1, 2, 0, 1, 2]  # the others were not disturbed
    assert pages["reward"][1, 5].tolist() == [2, 0]


def test_an_environment_that_breaks_while_it_begins_keeps_what_it_answered_before(breakable):
    class Stubborn(Tape):
        def reset(self, *, seed=None, options=None):
            if self.made:
                raise OSError("no more mazes")
            return super().reset(seed=seed)

    driver = loop.Host(Diary(), [Task("tape", "", Stubborn)], [3], Spec((2,), 2, iterations=12))
    driver.start()
    returns = driver.advance(12)
    assert "reset raised OSError (no more mazes)" in str(driver.fault)
    assert len(returns) == 3
    assert returns[2, 0, 0] == 6
    now = driver.timestep
    assert (now.reward[0, 0], now.terminated[0, 0]) == (3, True)
    assert np.isfinite(now.observation).all()


def test_an_environment_that_does_not_repeat_itself_is_cut_when_restored():
    spec = Spec((2,), 2, iterations=12)
    task = tape_task(rewards=(1.0,) * 9, forgetful=True)
    driver, _ = run(loop.Host, Diary(), [task], [3], spec, 5)
    tree, notes = driver.save()
    again = loop.Host(Diary(), [task], [3], spec)
    again.restore(tree, notes)
    again.advance(3)
    pages = told(again)
    assert pages["truncated"][0, :8, 0].tolist() == [False] * 5 + [True, False, False]
    assert not pages["terminated"].any()
    assert pages["observation"][0, :8, 0, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert pages["final"][0, 5, 0, 0] == 5  # where it was last seen
    assert pages["reward"][0, 1:8, 0].tolist() == [1.0] * 7  # and what it had brought


def test_a_repeatable_environment_goes_on_as_if_nothing_had_happened():
    spec = Spec((2,), 2, envs=2, iterations=12)
    task = replace(tape_task(), name="tape")
    whole, returns = run(loop.Host, Diary(), [task], [3], spec)
    driver, first = run(loop.Host, Diary(), [task], [3], spec, 5)
    again = loop.Host(Diary(), [task], [3], spec)
    again.restore(*driver.save())
    second = again.advance(7)
    same_told(told(again), told(whole))
    np.testing.assert_array_equal(np.concatenate([first, second]), returns)


def test_a_replay_that_ends_early_is_not_played_on():
    """An environment that raises when stepped after its end, and whose episodes differ in length."""
    lengths = iter([6, 2, 2, 6])

    class Moody(Tape):
        def reset(self, *, seed=None, options=None):
            self.rewards = (1.0,) * next(lengths)
            return super().reset(seed=seed)

    spec = Spec((2,), 2, iterations=12)
    driver, _ = run(loop.Host, Diary(), [Task("moody", "", Moody)], [3], spec, 4)
    again = loop.Host(Diary(), [Task("moody", "", Moody)], [3], spec)
    again.restore(*driver.save())
    again.advance(1)
    assert again.fault is None
    assert told(again)["truncated"][0, 4].tolist() == [True]


# What goes in and out of compiled functions


def test_what_was_compiled_in_a_thread_is_not_compiled_again():
    compiled = loop.packing.InPlace(lambda arrays, more: ((jnp.sin(arrays[0]) + more,), ()))
    arrays, durations = (jnp.ones(3),), []
    compiled.compiler(arrays, np.float32(1))()
    jax.monitoring.register_event_duration_secs_listener(lambda event, _, **__: durations.append(event))
    try:
        for _ in range(2):
            arrays, _ = compiled(arrays, np.float32(1))
    finally:
        jax.monitoring.clear_event_listeners()
    assert not [event for event in durations if "backend_compile" in event]


def test_what_a_function_leaves_as_it_is_does_not_pass_through_it():
    seen = []

    def function(arrays, more):
        seen.append(arrays)
        a, b, _, d, e = arrays
        return (a + more, b, a, d, e), (a.sum() + b.sum(), e)

    compiled = loop.packing.InPlace(function)
    arrays = jnp.arange(3.0), jnp.ones(2), jnp.zeros(3), jnp.ones(4), jnp.ones(5)
    (a, b, c, d, e), (total, seen_too) = compiled(arrays, np.float32(2))
    assert compiled.changes == [True, False, True, False, False]  # the third is changed: it becomes another of them
    assert compiled.reads == [False, True, False, False, True]  # nobody needs the fourth
    assert (b is arrays[1], d is arrays[3], e is arrays[4], seen_too.tolist()) == (True, True, True, [1] * 5)
    assert arrays[0].is_deleted()
    assert (a.tolist(), c.tolist(), float(total)) == ([2, 3, 4], [0, 1, 2], 5)
    (a, _, c, _, _), _ = compiled((a, b, c, d, e), np.float32(1))
    assert (a.tolist(), c.tolist(), len(seen)) == ([3, 4, 5], [2, 3, 4], 1)


def test_what_was_compiled_for_one_shape_takes_no_other():
    compiled = loop.packing.InPlace(lambda arrays: ((arrays[0] + 1,), ()))
    compiled((jnp.ones(3),))
    with pytest.raises(ValueError, match="unlike those that this was traced for"):
        compiled((jnp.ones(2),))


@pytest.mark.parametrize(
    ("dtype", "shape", "count"), [("float32", (3,), 1), ("float32", (2, 3), 1), ("float32", (), 1), ("uint8", (2, 2), 3)]
)
def test_what_is_joined_for_the_device_comes_apart_again(dtype, shape, count):
    random, size = np.random.default_rng(0), (2, 4)
    seen, final = (random.integers(0, 255, (*size, *shape)).astype(dtype) for _ in range(2))
    told = TimeStep(seen, random.normal(size=size).astype(np.float32), random.random(size) < 0.5, random.random(size) < 0.5, final)
    arrays = loop.packing.joined(told)
    assert len(arrays) == count
    apart = loop.packing.parted(Spec(shape, 2, dtype=dtype, envs=4), arrays)
    for a, b in zip(told, apart, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_stacks_of_frames_have_nothing_final_to_be_joined():
    told = TimeStep(
        np.ones((1, 2, 4, 3, 3), np.uint8), np.ones((1, 2), np.float32), *[np.ones((1, 2), bool)] * 2, np.zeros((1, 2, 0), np.uint8)
    )
    arrays = loop.packing.joined(told)
    assert len(arrays) == 2
    assert loop.packing.parted(Spec((4, 3, 3), 2, dtype="uint8", stack=4, envs=2), arrays).final.shape == (1, 2, 0)
