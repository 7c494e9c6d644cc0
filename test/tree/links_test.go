package tree

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Links of a document, in Markdown and in HTML; what is in a block or in a span of code is none.
var (
	codeBlock = regexp.MustCompile("(?ms)^```.*?^```")
	codeSpan  = regexp.MustCompile("`[^`\n]*`")
	linkTo    = regexp.MustCompile(`\]\(([^()\s]+)\)|(?:src|srcset|href)="([^"]+)"`)
	heading   = regexp.MustCompile(`(?m)^(#{1,6}) +(.*?)\s*$`)
	linkText  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	elsewhere = regexp.MustCompile(`^[a-z]+:`)
)

// links returns the targets of all links in a document.
func links(text string) []string {
	var to []string
	for _, m := range linkTo.FindAllStringSubmatch(codeSpan.ReplaceAllString(codeBlock.ReplaceAllString(text, ""), ""), -1) {
		to = append(to, m[1]+m[2])
	}
	return to
}

// anchors returns the names by which GitHub lets links lead to the headings of a document.
func anchors(text string) []string {
	var names []string
	times := map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, linkText.ReplaceAllString(m[2], "$1"))
		times[name]++
		if n := times[name]; n > 1 {
			name += fmt.Sprint("-", n-1)
		}
		names = append(names, name)
	}
	return names
}

// documents returns the text of each Markdown file of the tree, by its path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range files(t) {
		if path.Ext(name) != ".md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(text)
	}
	return all
}

// TestLinksLead checks that each relative link of a document leads to a file that is there, and to a heading that it has.
func TestLinksLead(t *testing.T) {
	all := documents(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, link := range links(all[name]) {
			if elsewhere.MatchString(link) {
				continue
			}
			to, anchor, _ := strings.Cut(link, "#")
			at := name
			if to != "" {
				at = path.Join(path.Dir(name), to)
			}
			if _, err := os.Stat(filepath.Join(root, at)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, link)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(all[at]), anchor) {
				t.Errorf("%s links to %s: %s has no such heading", name, link, at)
			}
		}
	}
}

// groups returns the pages that a document links to below each of the headings of this level, as paths from the root of the tree.
func groups(name, text, level string) map[string][]string {
	below := map[string][]string{}
	for _, part := range strings.Split("\n"+text, "\n"+level+" ")[1:] {
		title, rest, _ := strings.Cut(part, "\n")
		rest, _, _ = strings.Cut(rest, "\n## ")
		for _, link := range links(rest) {
			if to, _, _ := strings.Cut(link, "#"); path.Ext(to) == ".md" {
				below[title] = append(below[title], path.Join(path.Dir(name), to))
			}
		}
	}
	return below
}

// TestFrontDoor checks that README is short, that the index of the documents names each page once, and that README names the same
// pages in the same groups.
func TestFrontDoor(t *testing.T) {
	const readme, index, most = "README.md", "docs/README.md", 120 // lines
	all := documents(t)
	if n := strings.Count(all[readme], "\n"); n > most {
		t.Errorf("%s has %d lines, at most %d are allowed: what is long belongs into the page that explains it", readme, n, most)
	}
	listed := groups(index, all[index], "##")
	times := map[string]int{}
	for _, pages := range listed {
		for _, page := range pages {
			times[page]++
		}
	}
	for name := range all {
		if (path.Dir(name) == "docs" || path.Dir(name) == "docs/findings") && name != index && times[name] != 1 {
			t.Errorf("%s names %s %d times, not once", index, name, times[name])
		}
	}
	inReadme := groups(readme, all[readme], "###")
	for title, pages := range listed {
		if got := inReadme[title]; !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(pages))) {
			t.Errorf("group %q of %s has %v, of %s %v", title, index, pages, readme, got)
		}
	}
}
