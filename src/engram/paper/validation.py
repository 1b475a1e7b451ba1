"""How the policies of the Atari campaign are selected and tested (`engram.best_policy`)."""

VALIDATIONS = 5
"""evaluations during a training, by which the best policy is selected"""
VALIDATION_GAMES = 10
"""whole games of each of them"""
TEST_GAMES = 100
"""whole games by which the best policy is tested"""
