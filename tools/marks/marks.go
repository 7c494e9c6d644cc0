// Package marks replaces the text between two marks, for tables of documents that are made from data.
package marks

import (
	"fmt"
	"os"
	"strings"
)

// Place replaces the text between the marks <!-- NAME: made by COMMAND --> and <!-- NAME -->, each on its own line, by body.
// It returns an error unless both marks are there and the first one is unique.
func Place(text, name, body string) (string, error) {
	opening := "<!-- " + name + ": made by "
	start := strings.Index(text, opening)
	if start < 0 || strings.Count(text, opening) != 1 {
		return "", fmt.Errorf("want one line that begins with %q", opening)
	}
	line, rest, _ := strings.Cut(text[start:], "\n")
	closing := "<!-- " + name + " -->\n"
	_, after, ok := strings.Cut(rest, closing)
	if !ok {
		return "", fmt.Errorf("no line %q after it", strings.TrimSpace(closing))
	}
	return text[:start] + line + "\n" + body + closing + after, nil
}

// Write applies Place to the file at path.
func Write(path, name, body string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed, err := Place(string(text), name, body)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(changed), 0o644)
}
