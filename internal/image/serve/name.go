package serve

import (
	"regexp"
	"strings"

	"berth/internal/image"
)

// The grammar of the distribution specification ("Pulling manifests").
var (
	repoName = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagName  = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	digest   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// Place returns the repository and the tag under which an image is served. The tag is latest where its name has none. ok is false
// for a name that no client could ask for: one with capitals, with a registry's port, or with a digest.
func Place(name string) (repo, tag string, ok bool) {
	repo, tag = name, "latest"
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		repo, tag = name[:i], name[i+1:]
	}
	return repo, tag, len(repo) <= 255 && repoName.MatchString(repo) && tagName.MatchString(tag)
}

// shelf is the images by repository and tag.
type shelf struct {
	repos map[string]map[string]image.Record
	other []string // names that cannot be asked for
	all   []image.Record
}

// arrange sorts the images of the store into repositories. Of a name with and without ":latest" the one without is served.
func arrange(records []image.Record) shelf {
	s := shelf{repos: map[string]map[string]image.Record{}}
	for _, r := range records {
		if r.Broken != "" || len(r.Layers) == 0 {
			continue
		}
		repo, tag, ok := Place(r.Name)
		if !ok {
			s.other = append(s.other, r.Name)
			continue
		}
		if s.repos[repo] == nil {
			s.repos[repo] = map[string]image.Record{}
		}
		if _, twice := s.repos[repo][tag]; !twice {
			s.repos[repo][tag] = r
			s.all = append(s.all, r)
		}
	}
	return s
}
