// Sphinx's weights of what a search finds, but that the page of a fix comes first: readers paste a frame of a stack.
var Scorer = {
  score: ([page, , , , score]) => score + (page.startsWith("fixes/") ? 10 : 0),
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
