"""How good a model is: loss, answers and their scores, during a run and after it."""
