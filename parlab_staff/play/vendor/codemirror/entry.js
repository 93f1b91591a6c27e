// Everything that the playground's editor uses of CodeMirror 6. `bundle.sh` makes codemirror.js of it.
export { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
export {
  defaultKeymap, history, historyKeymap, indentLess, indentMore, toggleComment,
} from "@codemirror/commands";
export { python } from "@codemirror/lang-python";
export { bracketMatching, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
export { lintGutter, setDiagnostics } from "@codemirror/lint";
export { EditorState, RangeSet, StateEffect, StateField } from "@codemirror/state";
export {
  Decoration, EditorView, GutterMarker, drawSelection, gutter, highlightActiveLine, keymap, lineNumbers,
} from "@codemirror/view";
export { classHighlighter } from "@lezer/highlight";
