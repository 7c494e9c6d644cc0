package slurmconf

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// There is the content of a site's own slurm.conf, without Berth's file.
type There struct {
	Found    bool              // there is one
	Includes bool              // it includes Berth's file
	keys     map[string]string // values by lower-case key; of keys that are there several times, the last one
	after    map[string]bool   // keys that stand behind the line that includes Berth's file
	parts    []string          // names of its partitions
	gres     bool              // gres.conf is there, and does not include Berth's file
}

// ReadThere reads slurm.conf in a folder, and the files that it includes. None is no error.
func ReadThere(dir string) (*There, error) {
	t := &There{keys: map[string]string{}, after: map[string]bool{}}
	err := t.read(dir, "slurm.conf", 0)
	if err != nil && !(errors.Is(err, fs.ErrNotExist) && !t.Found) {
		return nil, err
	}
	if text, err := os.ReadFile(filepath.Join(dir, "gres.conf")); err == nil {
		t.gres = !slices.ContainsFunc(logical(string(text)), func(l string) bool { return strings.EqualFold(l, "include "+GresFile) })
	}
	return t, nil
}

// deepest bounds files that include each other.
const deepest = 8

func (t *There) read(dir, name string, depth int) error {
	path := name
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, name)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read Slurm's settings: %w", err)
	}
	t.Found = true
	for _, line := range logical(string(text)) {
		word, rest, _ := strings.Cut(line, " ")
		if strings.EqualFold(word, "include") {
			file := strings.TrimSpace(rest)
			if filepath.Base(file) == MainFile {
				t.Includes = true
				continue
			}
			if cluster := t.keys["clustername"]; cluster != "" {
				file = strings.ReplaceAll(file, "%c", cluster)
			}
			if depth == deepest {
				return fmt.Errorf("%s: files include each other more than %d deep", path, deepest)
			}
			if err := t.read(dir, file, depth+1); err != nil {
				return fmt.Errorf("%s includes %s: %w", path, file, err)
			}
			continue
		}
		t.line(line)
	}
	return nil
}

// line takes a line that is a key and its value, or describes nodes or a partition.
func (t *There) line(line string) {
	key, value, ok := strings.Cut(line, "=")
	if !ok {
		return
	}
	key = strings.ToLower(strings.TrimSpace(key))
	value = strings.TrimSpace(value)
	switch key {
	case "nodename", "nodeset", "downnodes", "frontendname":
		return
	case "partitionname":
		name, _, _ := strings.Cut(value, " ")
		t.parts = append(t.parts, strings.Trim(name, `"`))
		return
	}
	t.keys[key] = strings.Trim(value, `"`)
	t.after[key] = t.Includes
}

// logical splits a file into lines without comments and empty ones. A backslash at the end of a line continues it.
func logical(text string) (all []string) {
	whole := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if i := strings.IndexByte(line, '#'); i == 0 || i > 0 && line[i-1] != '\\' {
			line = line[:i]
		}
		if rest, ok := strings.CutSuffix(line, `\`); ok {
			whole += rest
			continue
		}
		if whole += line; strings.TrimSpace(whole) != "" {
			all = append(all, strings.Join(strings.Fields(whole), " "))
		}
		whole = ""
	}
	return all
}

// lists are the keys whose values are lists, in which Berth's words stand beside the site's.
var lists = map[string]bool{"slurmctldparameters": true, "grestypes": true, "suspendexcnodes": true, "privatedata": true}

// Conflict is a key that the site's slurm.conf sets to something else than Berth's file needs.
type Conflict struct {
	Key   string `json:"key"`
	There string `json:"there"`
	Want  string `json:"want"`
	Text  string `json:"text"`
}

// settle puts the keys of Berth's file beside those of the site: lists are joined, keys to leave are dropped, and values that exclude
// each other are a conflict.
func (t *There) settle(keys []key, leave []string, dns bool) (kept []key, conflicts []Conflict) {
	for _, k := range keys {
		name := strings.ToLower(k.name)
		if slices.ContainsFunc(leave, func(l string) bool { return strings.EqualFold(l, k.name) }) {
			continue
		}
		there, set := t.keys[name]
		switch {
		case !set:
		case lists[name]:
			words := strings.Split(there, ",")
			for w := range strings.SplitSeq(k.value, ",") {
				if !slices.ContainsFunc(words, func(o string) bool { return strings.EqualFold(o, w) }) {
					words = append(words, w)
				}
			}
			k.value = strings.Join(words, ",")
			if t.after[name] && !strings.EqualFold(k.value, there) {
				conflicts = append(conflicts, Conflict{k.name, there, k.value, "it stands behind the include of " + MainFile + ", and hides what that says: move the include to the end"})
			}
		case there != k.value:
			conflicts = append(conflicts, Conflict{k.name, there, k.value, "slurm.conf has one of it: take it out there, or write leave: [" + k.name + "] into slurm.yaml and see to it yourself"})
		}
		kept = append(kept, k)
	}
	if !dns && hasWord(t.keys["slurmctldparameters"], "cloud_dns") {
		conflicts = append(conflicts, Conflict{"SlurmctldParameters", "cloud_dns", "", "slurmctld would look the nodes' names up in DNS, and their addresses are told: take it out, or write addresses: dns into slurm.yaml"})
	}
	return kept, conflicts
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.TrimSpace(w), word) {
			return true
		}
	}
	return false
}

// advice returns notes on settings in a site's own files with which nodes would not work. gres: the nodes have generic
// resources.
func (t *There) advice(gres bool) (all []Note) {
	if gres && t.gres {
		all = append(all, Note{Text: "gres.conf does not include " + GresFile + ": add the line \"include " + GresFile + "\""})
	}
	if !t.Found {
		return all
	}
	if !t.Includes {
		all = append(all, Note{Text: "slurm.conf does not include " + MainFile + ": make \"include " + MainFile + "\" its last line"})
	}
	if !hasWord(t.keys["slurmdparameters"], "config_overrides") {
		all = append(all, Note{Text: "slurm.conf has no SlurmdParameters=config_overrides: a machine whose kernel sees less memory than it was given may be refused as invalid; containers see the host's"})
	}
	if strings.HasSuffix(t.keys["accountingstoragetype"], "slurmdbd") && !hasWord(t.keys["accountingstoreflags"], "job_comment") {
		all = append(all, Note{Text: "slurm.conf has no AccountingStoreFlags=job_comment: sacct shows what jobs were limited to, but not the comment by which they asked for it"})
	}
	for _, key := range slices.Sorted(maps.Keys(t.keys)) {
		if key != "proctracktype" && key != "taskplugin" && key != "jobacctgathertype" {
			continue
		}
		if strings.Contains(t.keys[key], "cgroup") {
			all = append(all, Note{Text: "slurm.conf has " + key + "=" + t.keys[key] + ": in nodes it works with cgroup v2 alone, and IgnoreSystemd=yes in their cgroup.conf"})
		}
	}
	return all
}
