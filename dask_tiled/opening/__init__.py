"""From paths to arrays: descriptions, arrays, several arrays, and facts about frames."""
