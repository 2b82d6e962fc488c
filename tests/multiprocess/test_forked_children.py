"""Workers of a job that fork, as loaders of data do, in every way in which a child ends."""

WORKER = """
import atexit, multiprocessing, warnings
warnings.simplefilter("ignore")
import jax.numpy as jnp
import numpy as np
import stratagem as sg

strategy = sg.distribute.MultiWorkerMirroredStrategy()
step = sg.function(
    lambda x: strategy.reduce("SUM", strategy.run(lambda y: y, args=(x,)), axis=None)
)

def steps():
    for _ in range(5):
        assert float(step(jnp.float32(1))) == 2.0

def load(number):
    return np.full(4, number).sum()

def ended(child):
    deadline = time.monotonic() + 30
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            raise AssertionError("the child hangs")
        time.sleep(0.01)

def use():
    try:
        step(jnp.float32(1))
    except sg.errors.ContextError as error:
        assert "forked child" in str(error)
        return 9
    return 1

steps()
ways = {"exit": 3, "raise": 1, "_exit": 4, "use": 9}
for how, code in ways.items():
    child = os.fork() if index == 1 else None
    if child == 0:
        atexit.register(lambda: None)
        if how == "exit": sys.exit(3)
        if how == "raise": raise ValueError("of the child")
        if how == "_exit": os._exit(4)
        if how == "use": os._exit(use())
    assert child is None or ended(child) == code, how
    steps()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(load, range(4)) == [0, 4, 8, 12]
steps()
print("well", flush=True)
"""


def test_a_worker_that_forks_stays_in_the_job(start, script):
    job = start("run", "--workers", 2, script(WORKER)).finish(120)
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == ["[worker 0] well", "[worker 1] well"]
    assert "of the child" in job.stderr
