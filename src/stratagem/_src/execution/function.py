"""``function``: compiles a step and caches its programs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import jax

from stratagem._src.core.errors import OutOfRangeError, TracedValueError, UnsupportedError
from stratagem._src.core.input_kinds import EndOfData
from stratagem._src.core.missing_names import missing_method
from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.core.types import CacheKey, PyTree
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.execution.bound_function import BoundFunction, CompiledFunction
from stratagem._src.execution.buffer_donation import VariablesGone
from stratagem._src.execution.build import trace_program
from stratagem._src.execution.call_signature import CallInputs
from stratagem._src.execution.compiler_options import CompilerOptions, checked_options
from stratagem._src.execution.dataset_loops.loop_body import LoopBody
from stratagem._src.execution.dataset_loops.step_cache import StepCache, looping
from stratagem._src.execution.draws import DrawMiss, EndMiss, RaggedElement
from stratagem._src.execution.fast_path import Fallbacks, FastPath, make_fast_path
from stratagem._src.execution.function_frame import LoopsOverDataset, UncaughtEndOfData
from stratagem._src.execution.program import Program
from stratagem._src.execution.program_cache import ProgramCache
from stratagem._src.execution.trace import trace_function
from stratagem._src.jax_compat import jax_settings
from stratagem._src.jax_compat.tracing import under_jit
from stratagem._src.mesh import process_settings as config
from stratagem._src.mesh.backend_lifetime import backend_lifetime
from stratagem._src.mesh.compile_only_group import detached_error
from stratagem._src.variables import frames, transactions

__all__ = ["Function", "function"]

_logger = logging.getLogger("stratagem")
_RETRACES_TO_WARN = 6
_SHAPES_TO_WARN = 10
_FIRST = "first call"
_MAX_LOOPING_SIGNATURES = 64


class Function(CompiledFunction):
    """A Python function that runs as a compiled program; made by ``stratagem.function``."""

    # The `__call__` of each instance is its latest fast path. A method of the class that forwards to it
    # would take longer than the fast path itself.
    __slots__ = {
        "__call__": "Calls the function; compiles it first if the call signature is new.",
        "__dict__": None,
        "__weakref__": None,
    }

    if TYPE_CHECKING:

        def __call__(self, *args: PyTree, **kwargs: PyTree) -> Any:
            """Calls the function; compiles it first if the call signature is new."""

    def __init__(
        self,
        python_function: Callable[..., Any],
        compiler_options: CompilerOptions | None = None,
    ) -> None:
        functools.update_wrapper(self, python_function)
        self._python_function = python_function
        self._compiler_options = compiler_options
        # Weak references: nothing that the function owns may keep it alive.
        self._fallbacks = Fallbacks(_weakly(self._after_miss), _weakly(self._call))
        self._programs = ProgramCache(weakref.WeakMethod(self._install_fast_path))
        self._install_fast_path(None)
        self._may_create = True
        # For each signature whose calls run as Python loops, the bodies of these loops that were traced;
        # with the key None, for all signatures.
        self._loops: dict[CacheKey, frozenset[LoopBody]] = {}
        self._needs_values = False
        self._steps = StepCache()
        self._num_traces = 0
        self._number_traces = 0
        self._methods: dict[int, tuple[weakref.ref[Any], Function]] = {}
        self._runners: weakref.WeakKeyDictionary[Any, Function] = weakref.WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the Python function, which is compiled again where it is loaded."""
        return Function, (self._python_function, self._compiler_options)

    if not TYPE_CHECKING:  # else type checkers would accept every attribute

        def __getattr__(self, name):
            raise missing_method(self, name)

    @property
    def python_function(self) -> Callable[..., Any]:
        """The Python function."""
        return self._python_function

    @property
    def input_signature(self) -> Sequence[Any] | None:
        """The specs of its arguments, if they were declared."""
        return None

    @property
    def replica_function(self) -> Callable[..., Any]:
        """What a replica calls, inside an outer compiled function or eagerly."""
        self._check_outermost()
        return self._python_function

    def method_of(self, instance: object) -> Callable[..., Any]:
        """Returns ``replica_function`` of this function as a method of ``instance``."""
        method: Callable[..., Any] = self._python_function.__get__(instance)
        return method

    def _of_method(self, method: Callable[..., Any]) -> Function:
        """Returns a compiled function like this one for the method of one instance."""
        return Function(method, self._compiler_options)

    def experimental_get_tracing_count(self) -> int:
        """Returns how many programs have been compiled: one per call signature."""
        inner = [
            *(bound for _, bound in self._methods.values()),
            *self._runners.values(),
        ]
        inside = sum(f.experimental_get_tracing_count() for f in inner)
        return self._num_traces + self._steps.num_programs + inside

    def lower(self, *args: PyTree, **kwargs: PyTree) -> jax.stages.Lowered:
        """Returns the program that a call with these arguments would run, without running it.

        ``function.lower(x).compile()`` gives XLA's text (``as_text()``), memory (``memory_analysis()``) and
        cost (``cost_analysis()``). The devices need not exist: create the strategy with the devices of a
        ``jax.experimental.topologies`` description.

        JAX equivalent: ``jax.jit(f).lower(x)``.

        >>> import jax.numpy as jnp
        >>> import stratagem as sg
        >>> double = sg.function(lambda x: x * 2)
        >>> double.lower(jnp.ones(4)).compile().memory_analysis().argument_size_in_bytes
        16
        """
        # Imported here, to keep `import stratagem` cheap.
        from stratagem._src.execution.lowering import lower_call

        return lower_call(self._python_function, args, kwargs, self._compiler_options)

    def _install_fast_path(self, fast_path: FastPath | None) -> None:
        """Makes ``fast_path`` the ``__call__`` of this function; without one, calls take the slow path."""
        call = self._fallbacks.failed
        run = (lambda *args, **kwargs: call(args, kwargs)) if fast_path is None else fast_path.run
        # Set the slot of this class even where a subclass defines `__call__`. Not through the global name
        # `Function`, which is already cleared when a program is evicted at interpreter shutdown.
        __class__.__call__.__set__(self, run)  # type: ignore[name-defined]

    def _after_miss(self, mark: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Makes a call that the fast path with this mark missed: by the next one, or the slow path."""
        recent = self._programs.recent
        for missed, following in itertools.pairwise(recent):
            if missed.mark is mark:
                return following.run(*args, **kwargs)
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check_outermost()
        open_frames = THIS_THREAD.state.state_frames
        if open_frames or frames.records():
            if open_frames:
                open_frames[-1].note_step(self._python_function)
            return self._python_function(*args, **kwargs)
        return self._find_and_run(args, kwargs)

    def _find_and_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        frame = context.current_frame()
        replica = frame.replica_context
        if replica is not None and replica.num_replicas_in_sync > 1:
            return self._python_function(*args, **kwargs)
        if config.functions_run_eagerly():
            return self._run_eagerly(args, kwargs)
        if self._needs_values and THIS_THREAD.state.in_element_function:
            return self._python_function(*args, **kwargs)
        inputs = CallInputs(args, kwargs)
        if inputs.traced or under_jit():
            return self._python_function(*args, **kwargs)
        if inputs.ragged:
            return self._run_eagerly(args, kwargs)
        # Do not even try to trace: the trace would stop at the loop, and the side effects of the Python
        # code before the loop would happen twice.
        if inputs.has_dataset:
            return self._run_loop(args, kwargs, frozenset())
        if self._loops:
            return self._run_loop(args, kwargs, self._traced_bodies(inputs))
        settings = jax_settings.current_settings()
        strategy = weakref.ref(frame.strategy)
        key = (inputs.key, strategy, replica is None, settings)
        tried: list[Program] = []
        ends: list[EndMiss] = []
        for program in self._programs.get(key):
            tried.append(program)
            if inputs.is_plain():
                self._programs.add_fast_path(
                    key,
                    program,
                    tuple(inputs.leaves()),
                    functools.partial(make_fast_path, program, inputs, frame, self._fallbacks),
                )
            try:
                return program.run(inputs)
            except EndMiss as miss:
                ends.append(miss)
            except (DrawMiss, VariablesGone):
                continue
        try:
            while True:
                tried.append(self._compile(inputs, key, strategy, tried))
                # Another thread may have drawn the element that was traced; then compile for the next one.
                with contextlib.suppress(DrawMiss, VariablesGone):
                    return tried[-1].run(inputs)
        except RaggedElement:
            return self._run_eagerly(args, kwargs)
        except UncaughtEndOfData as error:
            for end in ends:
                end.is_not_caught()
            raise OutOfRangeError(*error.args) from None
        except LoopsOverDataset as reason:
            self._loops[None if reason.bodies is None else inputs.key] = (
                reason.bodies or frozenset()
            )
            return self._run_loop(args, kwargs, self._traced_bodies(inputs))
        except TracedValueError:
            if not THIS_THREAD.state.in_element_function:
                raise
            # Elements of a dataset are on the host: there, `if` and `for` on arrays work uncompiled.
            self._needs_values = True
            return self._python_function(*args, **kwargs)

    def run_in_replicas(
        self, strategy: StrategyProtocol, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs this function, compiled, in every replica of ``strategy``."""
        if strategy not in self._runners:
            python_function = self._python_function

            # A weak reference: the runner is a value of a WeakKeyDictionary and must not keep its key
            # alive.
            reference = weakref.ref(strategy)

            def run(args: PyTree, kwargs: PyTree) -> Any:
                return reference().run(python_function, args, kwargs)  # type: ignore[union-attr]

            functools.update_wrapper(run, python_function)
            self._runners[strategy] = Function(run, self._compiler_options)
        return self._runners[strategy](args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        # By identity: equal instances may hold different variables.
        known = self._methods.get(id(instance))
        if known is not None and known[0]() is instance:
            return BoundFunction(self, known[1], instance)
        methods, key = self._methods, id(instance)
        try:
            reference = weakref.ref(instance, lambda _: methods.pop(key, None))
        except TypeError:  # the instance does not allow weak references
            return types.MethodType(self, instance)
        python_function = self._python_function

        def method(*args: PyTree, **kwargs: PyTree) -> Any:
            # The reference is alive: a BoundFunction holds the instance.
            return python_function(reference(), *args, **kwargs)

        functools.update_wrapper(method, python_function)
        function = self._of_method(method)
        methods[key] = (reference, function)
        return BoundFunction(self, function, instance)

    def __repr__(self) -> str:
        return f"<stratagem.function {getattr(self, '__qualname__', self._python_function)!s}>"

    def _compile(
        self, inputs: CallInputs, key: CacheKey, strategy: weakref.ref[Any], tried: list[Program]
    ) -> Program:
        # Other threads wait until the first call is over, because it may create variables.
        first = self._programs.compiling(_FIRST) if self._may_create else contextlib.nullcontext()
        with first, self._programs.compiling(key):
            for program in self._programs.get(key):
                if program not in tried:  # another thread has compiled it meanwhile
                    return program
            fn, options = self._python_function, self._compiler_options
            made = trace_program(fn, inputs, options, may_create=self._may_create)
            self._may_create = False
            if made is None:
                made = trace_program(fn, inputs, options, may_create=False)
            assert made is not None
            if made.group is not None and not made.group.attached:
                raise detached_error(made.group)
            self._num_traces += 1
            needs = [strategy, backend_lifetime(), *inputs.needs, *made.depends_on()]
            self._programs.add(key, made, needs)
            self._warn_of_retracing(inputs)
            return made

    def _warn_of_retracing(self, inputs: CallInputs) -> None:
        if not inputs.num_python_numbers():
            other_traces = self._num_traces - self._number_traces
            if other_traces == _SHAPES_TO_WARN:
                _logger.warning(
                    "%r has been compiled %d times for different shapes, dtypes or objects in its "
                    "arguments or elements; each new one compiles again. Pad to a few shapes, or batch "
                    "with drop_remainder=True; pass values that change as arrays.",
                    self,
                    other_traces,
                )
            return
        self._number_traces += 1
        if self._number_traces == _RETRACES_TO_WARN:
            _logger.warning(
                "%r has been compiled %d times for different Python numbers in its arguments. Pass "
                "numbers that change as arrays, for example jnp.asarray(x).",
                self,
                self._number_traces,
            )

    def _check_outermost(self) -> None:
        if self._compiler_options and under_jit():
            raise UnsupportedError(
                f"compiler_options belong to a whole program, but {self!r} is called inside another "
                "compiled function. Give them to the outermost one."
            )

    def _traced_bodies(self, inputs: CallInputs) -> frozenset[LoopBody]:
        """Returns the bodies of loops over ``tf.range`` that are traced once for calls like this one."""
        if None in self._loops:
            return self._loops[None]
        if inputs.key not in self._loops:
            if len(self._loops) == _MAX_LOOPING_SIGNATURES:
                self._loops.clear()
            try:
                trace_function(self._python_function, inputs, may_create=False, tries_loop=True)
            except LoopsOverDataset as reason:
                self._loops[inputs.key] = reason.bodies or frozenset()
        return self._loops[inputs.key]

    def _run_loop(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], bodies: frozenset[LoopBody]
    ) -> Any:
        if self._compiler_options:
            raise UnsupportedError(
                f"compiler_options belong to one program, but {self!r} loops over a dataset, in Python. "
                "Give them to a function of one step, and call that in the loop."
            )
        return self._run_eagerly(args, kwargs, self._steps, bodies)

    def _run_eagerly(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        steps: StepCache | None = None,
        bodies: frozenset[LoopBody] = frozenset(),
    ) -> Any:
        def run() -> Any:
            with looping(steps, bodies):
                return self._python_function(*args, **kwargs)

        # A loop is not one atomic call: it may draw more elements than fit into memory to be put back, and
        # other threads cannot wait for its end.
        try:
            if steps is None:
                return transactions.atomically(lambda _: run(), keeps_draws=True)
            return transactions.in_loop(run)
        except EndOfData:
            raise OutOfRangeError("End of the dataset.") from None


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls a bound method without keeping its object alive."""
    reference = weakref.WeakMethod(method)

    def call(*args: PyTree) -> Any:
        method = reference()
        if method is None:
            raise ReferenceError(
                "The stratagem.function does not exist any more. Keep the function itself, not its "
                "__call__."
            )
        return method(*args)

    return call


@overload
def function(
    func: None = None,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: str | None = None,
    experimental_autograph_options: object = None,
    experimental_attributes: Mapping[str, Any] | None = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
    *,
    compiler_options: CompilerOptions | None = None,
) -> Callable[[Callable[..., Any]], Function]: ...


@overload
def function(
    func: Callable[..., Any],
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: str | None = None,
    experimental_autograph_options: object = None,
    experimental_attributes: Mapping[str, Any] | None = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
    *,
    compiler_options: CompilerOptions | None = None,
) -> Function: ...


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: str | None = None,
    experimental_autograph_options: object = None,
    experimental_attributes: Mapping[str, Any] | None = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
    *,
    compiler_options: CompilerOptions | None = None,
) -> Callable[[Callable[..., Any]], Function] | Function:
    """Compiles a function into one program per call signature.

    ``strategy.run``, collectives, reads and assignments of variables inside the function all become part
    of the program. The first call with new shapes, dtypes or Python values traces the function; later calls
    run the compiled program. If a call fails, variables keep the values they had; updates that were already
    sent to parameter servers are not undone. Use it as a decorator.

    Python numbers in the arguments are constants of the program: pass numbers that change as arrays, or
    declare them in ``input_signature``. ``next(iterator)`` of a dataset, distributed or plain, draws an
    element in each call, before the program runs. A function that loops over a dataset runs as a
    Python loop whose ``strategy.run`` is compiled.

    Args:
        func: The function; without it a decorator is returned.
        input_signature: A ``TensorSpec`` for each argument, or a nest of them, or the ``element_spec`` of a
            distributed dataset. Calls that do not match raise ``SignatureMismatchError``, a
            ``TypeError``. Python and NumPy numbers become arrays of the declared dtype.
        autograph: Ignored: Python's ``if`` and ``while`` on arrays raise either way. Use ``jax.lax.cond``
            and ``jax.lax.while_loop``.
        jit_compile: Ignored: XLA compiles everything, also with ``False``. To compile nothing, call
            ``stratagem.config.run_functions_eagerly(True)``.
        reduce_retracing: Ignored: XLA programs have fixed shapes, so each shape is traced.
        experimental_implements: Ignored: there is no graph to store it in.
        experimental_autograph_options: Ignored, like ``autograph``.
        experimental_attributes: Ignored, like ``experimental_implements``.
        experimental_relax_shapes: The older name of ``reduce_retracing``.
        experimental_compile: The older name of ``jit_compile``.
        experimental_follow_type_hints: Ignored, as in current TensorFlow.
        compiler_options: Flags of XLA for this function's programs, by their names without ``--``, such as
            ``{"xla_gpu_enable_pipelined_all_gather": True}``. They override ``XLA_FLAGS``. An unknown flag
            raises when the function is compiled.

    Raises:
        InvalidArgumentError: If ``compiler_options`` are not names with values.

    Differs from tf.distribute: an ``input_signature`` with unknown sizes declares which sizes are allowed;
    each size still has its own program.

    JAX equivalent: ``jax.jit``, with variables lifted to donated arguments.

    >>> import stratagem as sg
    >>> import jax.numpy as jnp
    >>> v = sg.Variable(1.0)
    >>> @sg.function
    ... def step(x):
    ...     v.assign_add(x)
    ...     return v * 2
    >>> float(step(jnp.float32(2.0)))
    6.0
    >>> step.experimental_get_tracing_count()
    1
    """
    if compiler_options is not None:
        compiler_options = checked_options(compiler_options)
    make: Callable[[Callable[..., Any]], Function]
    make = functools.partial(Function, compiler_options=compiler_options)
    if input_signature is not None:
        # Imported lazily: few functions declare an input signature.
        from stratagem._src.execution.function_with_signature import with_signature

        make = with_signature(input_signature, compiler_options)
    return make if func is None else make(func)
