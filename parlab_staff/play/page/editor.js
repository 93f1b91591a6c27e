// The program's editor: CodeMirror with Python, problems at their lines, and the ranks at theirs.
import {
  Decoration,
  EditorState,
  EditorView,
  GutterMarker,
  RangeSet,
  StateEffect,
  StateField,
  bracketMatching,
  classHighlighter,
  closeBrackets,
  closeBracketsKeymap,
  defaultKeymap,
  drawSelection,
  gutter,
  highlightActiveLine,
  history,
  historyKeymap,
  indentLess,
  indentMore,
  indentOnInput,
  indentUnit,
  keymap,
  lineNumbers,
  lintGutter,
  python,
  setDiagnostics,
  syntaxHighlighting,
  toggleComment,
} from "../vendor/codemirror/codemirror.js";

const showRanks = StateEffect.define();

// The ranks that are at a line, as text in the gutter.
class Ranks extends GutterMarker {
  constructor(ranks) {
    super();
    this.ranks = ranks;
  }
  eq(other) {
    return this.ranks.join() === other.ranks.join();
  }
  toDOM() {
    const mark = document.createElement("span");
    mark.className = "at-rank";
    mark.textContent = this.ranks.join(" ");
    mark.title = `rank ${this.ranks.join(", rank ")}`;
    return mark;
  }
}

const NOWHERE = { markers: RangeSet.empty, lines: Decoration.none };

// Map from line to ranks, as gutter markers and colored lines.
const rankLines = StateField.define({
  create: () => NOWHERE,
  update(value, transaction) {
    let next = transaction.docChanged ? NOWHERE : value;
    for (const effect of transaction.effects)
      if (effect.is(showRanks)) {
        const doc = transaction.state.doc;
        const places = [...effect.value]
          .filter(([line]) => line >= 1 && line <= doc.lines)
          .sort(([a], [b]) => a - b);
        const at = places.map(([line, ranks]) => [doc.line(line).from, ranks]);
        next = {
          markers: RangeSet.of(at.map(([from, ranks]) => new Ranks(ranks).range(from))),
          lines: Decoration.set(at.map(([from]) => Decoration.line({ class: "rank-line" }).range(from))),
        };
      }
    return next;
  },
  provide: (field) => EditorView.decorations.from(field, (value) => value.lines),
});

const ranksGutter = gutter({
  class: "ranks-gutter",
  markers: (view) => view.state.field(rankLines).markers,
});

export class Editor {
  constructor(parent, { text, onChange, onRun, onLeave }) {
    const keys = [
      { key: "Mod-Enter", run: () => (onRun(), true) },
      { key: "Escape", run: () => (onLeave(), true) },
      { key: "Tab", run: indentMore, shift: indentLess },
      { key: "Mod-/", run: toggleComment },
    ];
    this.view = new EditorView({
      parent,
      state: EditorState.create({
        doc: text,
        extensions: [
          keymap.of(keys),
          keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap]),
          lintGutter(),
          ranksGutter,
          rankLines,
          lineNumbers(),
          history(),
          drawSelection(),
          indentUnit.of("    "),
          indentOnInput(),
          bracketMatching(),
          closeBrackets(),
          highlightActiveLine(),
          // On a phone, lines scroll: with 40 characters in a line, a program has no shape.
          matchMedia("(min-width: 48rem)").matches ? EditorView.lineWrapping : [],
          python(),
          syntaxHighlighting(classHighlighter),
          EditorView.contentAttributes.of({
            "aria-label": "Program in Python",
            "aria-describedby": "editor-help",
            spellcheck: "false",
            tabindex: "0",
          }),
          EditorView.updateListener.of(
            (update) => update.docChanged && onChange(update.state.doc.toString()),
          ),
        ],
      }),
    });
  }

  get text() {
    return this.view.state.doc.toString();
  }

  set text(text) {
    this.view.dispatch({ changes: { from: 0, to: this.view.state.doc.length, insert: text } });
  }

  // `problems` is a list of {line, text}.
  mark(problems) {
    const doc = this.view.state.doc;
    const found = problems
      .filter(({ line }) => line >= 1 && line <= doc.lines)
      .map(({ line, text }) => {
        const at = doc.line(line);
        const indent = at.text.match(/^\s*/)[0].length;
        return { from: Math.min(at.from + indent, at.to), to: at.to, severity: "error", message: text };
      });
    this.view.dispatch(setDiagnostics(this.view.state, found));
  }

  // `places` is a Map from a line to the list of ranks at it.
  showRanks(places, scroll = false) {
    const effects = [showRanks.of(places)];
    const first = Math.min(...places.keys());
    if (scroll && first >= 1 && first <= this.view.state.doc.lines)
      effects.push(EditorView.scrollIntoView(this.view.state.doc.line(first).from, { y: "nearest" }));
    this.view.dispatch({ effects });
  }
}
