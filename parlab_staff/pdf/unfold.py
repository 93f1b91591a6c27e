"""Rewrites, for paper, elements that a reader folds, chooses, or clicks on the website."""

from bs4 import BeautifulSoup, Tag

_EMPTY = BeautifulSoup("", "html.parser")


def _element(name: str, classes: str = "", *content: Tag | str, **attributes: str) -> Tag:
    """Return a new element, and move `content` into it."""
    if classes:
        attributes["class"] = classes
    element = _EMPTY.new_tag(name, attrs=attributes)
    element.extend(content)
    return element


def unfold(article: Tag) -> None:
    """Make everything in a page visible, and move the answers to its questions to its end."""
    for element in article.select("details.hide, .sd-summary-state-marker, .start"):
        element.decompose()  # code that draws a figure, and buttons
    _move_answers(article)
    for cell in article.select("th, td"):
        if not cell.get_text(strip=True) and not cell.find(["img", "svg"]):
            cell.append("\N{NO-BREAK SPACE}")  # Chromium does not tag empty cells
    for folded in article.select("details"):
        title = _taken(folded.summary)
        folded.name, folded["class"] = "div", "unfolded"
        folded.insert(0, _element("p", "unfolded-title", *title))
    for tabs in article.select(".sd-tab-set"):
        for choice in tabs.find_all("input", recursive=False):
            choice.decompose()
        for label in tabs.find_all("label", recursive=False):
            label.name, label["class"] = "p", "tab-title"
            del label["for"]
    for card in article.select(".sd-card"):
        link, title = card.select_one("a.sd-stretched-link"), card.select_one(".sd-card-title")
        if link and title:
            title.append(_element("a", "", *list(title.contents), href=str(link["href"])))
            link.decompose()


def _taken(element: Tag | None) -> list[Tag | str]:
    """Remove an element. Return its contents."""
    assert element is not None
    return list(element.extract().contents)


def _move_answers(article: Tag) -> None:
    questions = article.select_one("section#questions")
    folded = questions.find_all("details", recursive=False) if questions else []
    if not folded:
        return
    question_list, answer_list = _element("ol", "questions"), _element("ol", "answers")
    folded[0].insert_before(question_list)
    for number, question in enumerate(folded, 1):
        text = question.select_one(".sd-summary-text")
        answer = question.select_one(".sd-summary-content")
        assert text and answer
        to_answer = _element("a", "to-answer", "Answer", href=f"#answer-{number}")
        to_answer["data-page"] = "000"
        question_list.append(
            _element("li", "", *_taken(text), " ", to_answer, id=f"question-{number}")
        )
        answer_list.append(_element("li", "", *_taken(answer), id=f"answer-{number}"))
        question.decompose()
    heading = _element("h2", "", "Answers")
    chapter = article.find("section", recursive=False) or article
    chapter.append(_element("section", "", heading, answer_list, id="answers"))


def reference_solutions(page: str, solutions: Tag) -> Tag:
    """Return the code of each exercise on a page of solutions, under the exercise's heading."""
    title = solutions.h1
    assert title is not None, page
    kept = _element("section", "", _element("h2", "", *_taken(title)))
    for cell in solutions.select(".cell.tag_exercise"):
        section, code = cell.find_parent("section"), cell.select_one(".cell_input")
        heading = section.find(["h2", "h3", "h4"], recursive=False) if section else None
        if heading and section:
            kept.append(_element("h3", "", *_taken(heading), id=str(section["id"])))
        kept.append(code)
    return kept
