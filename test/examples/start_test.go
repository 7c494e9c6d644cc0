package examples

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// typed is what one types at a prompt, and what the page says that it prints; "…" stands for any text.
type typed struct {
	command, prints string
	code            int
}

// readPage returns the blocks marked sh of a page, one command after the other: a line, or the lines up to END. A block marked
// text says what the command before it prints; its last line may name the exit code.
func readPage(t *testing.T, file string) (all []typed) {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		if block[1] == "sh" {
			for _, c := range regexp.MustCompile(`(?ms)^[^\n]*<<'END'\n.*?^END$|^[^\n]+$`).FindAllString(block[2], -1) {
				all = append(all, typed{command: c})
			}
			continue
		}
		if len(all) == 0 {
			t.Fatalf("%s: it says what is printed before anything is typed", file)
		}
		last := &all[len(all)-1]
		last.prints = block[2]
		if at := strings.LastIndex(block[2], "exit code "); at >= 0 {
			last.prints = block[2][:at]
			if last.code, err = strconv.Atoi(strings.TrimSpace(block[2][at+len("exit code "):])); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

// fits reports whether a command printed what the page says.
func (c typed) fits(out string) bool {
	parts := strings.Split(strings.TrimSpace(c.prints), "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile(`(?s)^` + strings.Join(parts, ".*") + `$`).MatchString(strings.TrimSpace(out))
}

// TestStart types docs/start.md.
func TestStart(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	page := readPage(t, "../../docs/start.md")
	if len(page) < 15 || len(page) > 25 {
		t.Errorf("%d commands are typed: about twenty are promised", len(page))
	}
	for _, c := range page {
		out, code := p.try(c.command)
		if code != c.code {
			t.Fatalf("%s: exit code %d, want %d\n%s", c.command, code, c.code, out)
		}
		if c.prints != "" && !c.fits(out) {
			t.Errorf("%s: it prints\n%s\nthe page says\n%s", c.command, out, c.prints)
		}
	}
}
