"""Draws the pictures of the documentation; run as a script it writes ``docs/images/*.svg``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "images"
INK, PALE = "#3949ab", "#e8eaf6"
STYLE = "font-family:sans-serif;font-size:14px"

# From a call of a compiled function to the devices: what happens, and the file and symbol that do it.
PIPELINE = (
    (
        "Trace",
        ("cache key of the call", "execution/call_signature.py", "CallInputs"),
        ("trace the user's function", "execution/trace.py", "trace_function"),
        ("trace one replica for all", "execution/replicas/spmd.py", "run_spmd"),
        ("reject divergent collectives", "collectives/divergence.py", "check_divergence"),
        ("one shard_map per run", "collectives/mapped_jaxpr.py", "MappedJaxpr.call"),
    ),
    (
        "Rewrite the jaxpr",
        ("drawn elements become inputs", "execution/passes.py", "lift_drawn_elements"),
        ("variables become inputs", "execution/passes.py", "lift_variables"),
        ("changed numbers become inputs", "execution/passes.py", "hoist_changed_numbers"),
        ("split off remote variables", "execution/passes.py", "split_remote_variables"),
        ("guard host callbacks", "execution/passes.py", "guard_host_callbacks"),
        ("rewrite for the platform", "execution/passes.py", "rewrite_for_devices"),
        ("inline, merge, evaluate", "execution/passes.py", "evaluate"),
    ),
    (
        "Compile and run",
        ("fuse the collectives", "collectives/collective_fusion.py", "FusedProgram.run"),
        ("order the collectives", "collectives/collective_tokens.py", "CollectiveTokens"),
        ("jax.jit with donation", "collectives/collective_jit.py", "jit_with_collectives"),
        ("compile with XLA", "execution/program.py", "Program._compile"),
        ("launch, store variables", "execution/buffer_donation.py", "VariableBuffers.run"),
        ("fast path of later calls", "execution/fast_path.py", "make_fast_path"),
    ),
)


@dataclass
class Picture:
    """Boxes and arrows on a white ground, readable on dark pages too."""

    width: int
    height: int
    shapes: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, *lines: str, state: bool = False) -> None:
        """Adds a box with lines of text; state has round corners and no filling."""
        height, filling, corner = (
            14 + 20 * len(lines),
            "#ffffff" if state else PALE,
            14 if state else 3,
        )
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{corner}" fill="{filling}" '
            f'stroke="{INK}" stroke-width="1.5"/>'
        )
        for number, line in enumerate(lines):
            weight = ' font-weight="bold"' if number == 0 else ""
            self.shapes.append(
                f'<text x="{x + width / 2}" y="{y + 23 + 20 * number}" text-anchor="middle" '
                f'fill="#1a237e"{weight}>{line}</text>'
            )

    def arrow(
        self, start: tuple[int, int], end: tuple[int, int], text: str = "", both: bool = False
    ) -> None:
        """Adds an arrow with a word above its middle."""
        tail = ' marker-start="url(#head)"' if both else ""
        self.shapes.append(
            f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" stroke="{INK}" '
            f'stroke-width="1.5" marker-end="url(#head)"{tail}/>'
        )
        if text:
            self.word((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 - 7, text)

    def elbow(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Adds an arrow that turns twice, halfway between its ends."""
        middle = (start[0] + end[0]) // 2
        points = f"{start[0]},{start[1]} {middle},{start[1]} {middle},{end[1]} {end[0]},{end[1]}"
        self.shapes.append(
            f'<polyline points="{points}" fill="none" stroke="{INK}" stroke-width="1.5" '
            'marker-end="url(#head)"/>'
        )

    def word(self, x: float, y: float, text: str) -> None:
        """Adds a text around a point."""
        self.shapes.append(
            f'<text x="{x}" y="{y}" text-anchor="middle" fill="#37474f">{text}</text>'
        )

    def write(self, name: str, title: str) -> None:
        """Writes the file."""
        head = (
            f'<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker>'
        )
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'style="{STYLE}" role="img"><title>{title}</title><defs>{head}</defs>'
            f'<rect width="100%" height="100%" fill="#ffffff"/>\n'
            + "\n".join(self.shapes)
            + "\n</svg>\n"
        )


def strategy() -> None:
    """One step of two replicas."""
    picture = Picture(860, 240)
    picture.box(10, 90, 150, "global batch", "rows 0 to 31")
    picture.box(280, 20, 210, "replica 0", "your step, on device 0")
    picture.box(280, 166, 210, "replica 1", "your step, on device 1")
    picture.box(640, 20, 200, "variables", "copy on device 0", state=True)
    picture.box(640, 166, 200, "variables", "copy on device 1", state=True)
    picture.arrow((160, 105), (278, 52))
    picture.arrow((160, 130), (278, 190))
    picture.word(205, 62, "rows 0 to 15")
    picture.word(200, 188, "rows 16 to 31")
    picture.arrow((385, 76), (385, 164), both=True)
    picture.word(475, 125, "all-reduce of gradients")
    picture.arrow((492, 47), (638, 47), "the same update")
    picture.arrow((492, 193), (638, 193), "the same update")
    picture.write("strategy", "A strategy at work: two replicas, one batch, equal variables")


def compiled() -> None:
    """What a first and a later call of a compiled step do."""
    picture = Picture(860, 190)
    picture.box(10, 20, 170, "train_step(batch)", "first call")
    picture.box(270, 20, 250, "traced once", "variables found, replicas joined")
    picture.box(620, 20, 220, "one XLA program", "collectives inside")
    picture.box(10, 116, 170, "train_step(batch)", "every later call")
    picture.arrow((180, 47), (268, 47))
    picture.arrow((520, 47), (618, 47), "compiled")
    picture.arrow((180, 143), (735, 143))
    picture.arrow((735, 143), (735, 76))
    picture.write("compiled", "The first call is traced and compiled; later ones run the program")


def parameter_servers() -> None:
    """Who talks to whom in asynchronous training."""
    picture = Picture(860, 220)
    picture.box(10, 80, 160, "coordinator", "schedule, join")
    picture.box(330, 10, 150, "worker 0", "runs functions")
    picture.box(330, 146, 150, "worker 1", "runs functions")
    picture.box(670, 10, 170, "server 0", "rows 0 to 499", state=True)
    picture.box(670, 146, 170, "server 1", "rows 500 to 999", state=True)
    picture.arrow((170, 97), (328, 42))
    picture.arrow((170, 118), (328, 168))
    picture.word(225, 58, "functions")
    picture.word(225, 165, "functions")
    for start in (37, 173):
        for end in (37, 173):
            picture.arrow((482, start), (668, end), both=True)
    picture.word(575, 25, "reads, updates")
    picture.write(
        "parameter_servers", "Workers read from and write to servers, each at its own pace"
    )


def pipeline() -> None:
    """The passes between a call and XLA, one column for each phase."""
    width, height, gap = 258, 74, 26
    picture = Picture(870, 50 + max(len(steps) for _, *steps in PIPELINE) * (height + gap) - gap)
    for number, (phase, *steps) in enumerate(PIPELINE):
        x = 10 + number * (width + 38)
        picture.word(x + width / 2, 24, phase)
        for row, step in enumerate(steps):
            y = 40 + row * (height + gap)
            picture.box(x, y, width, *step)
            if row:
                picture.arrow((x + width // 2, y - gap), (x + width // 2, y - 1))
        if number:
            before = len(PIPELINE[number - 1]) - 1
            last = 40 + (before - 1) * (height + gap) + height // 2
            picture.elbow((x - 38, last), (x - 1, 40 + height // 2))
    picture.write("pipeline", "From a call of a compiled function to XLA")


def draw_all() -> None:
    """Writes every picture."""
    for draw in (strategy, compiled, parameter_servers, pipeline):
        draw()


if __name__ == "__main__":
    draw_all()
