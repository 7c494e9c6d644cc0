// Package template makes nodes from the templates of admins: a spec, and parameters with types and bounds that the user who makes a
// node fills in. A value goes into one field of the node that was read from the template, never into text.
package template

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"berth/internal/spec"
	"berth/internal/spec/roles"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/suggest"
)

// Dir is where admins keep templates: NAME.yaml.
const Dir = "/etc/berth/templates"

const extension = ".yaml"

// Template is a template as its file has it.
type Template struct {
	Name        string               `json:"-"` // of the file, without .yaml
	Description string               `json:"description,omitempty" doc:"what it is for, in a line"`
	Parameters  map[string]Parameter `json:"parameters,omitempty" doc:"what may be chosen, by name"`
	Numbered    bool                 `json:"numbered,omitempty" doc:"the number at the end of a node's name is added to its addresses: with address 192.0.2.20/24, node st01-03 has 192.0.2.23/24"`
	Highest     int                  `json:"highest,omitempty" doc:"with numbered: the highest number that a name may end in; default: as far as the network goes"`
	Most        int                  `json:"most,omitempty" doc:"how many nodes of it one operator may have on a host, running or not; default: any number"`
	Operators   []string             `json:"operators,omitempty" doc:"the operators who may make nodes of it; default: all. Admins may anyway"`
	Node        vnode.Node           `json:"node" doc:"the spec, without a name; what no parameter sets is as it is here"`

	dir  string // of the file: relative images begin there
	text []byte
}

// Parameter is something that may be chosen, within bounds.
type Parameter struct {
	Sets        string `json:"sets" doc:"the field: image, command, args, command[N], env.NAME, labels.NAME, or a limit as in berth set (cpu.max, io.data.read.rate)"`
	Type        Type   `json:"type" doc:"number, integer, size, rate, bitrate, string, choice or list"`
	Description string `json:"description,omitempty" doc:"what it is, in a line"`
	Default     *Text  `json:"default,omitempty" doc:"its value if none is given; default: the node stays as the template has it"`
	Min         *Text  `json:"min,omitempty" doc:"the least value"`
	Max         *Text  `json:"max,omitempty" doc:"the greatest value; of a limit never more than the template's own"`
	Of          []Text `json:"of,omitempty" doc:"the values of a choice"`
	Pattern     string `json:"pattern,omitempty" doc:"a regular expression that the whole string, or each word of a list, matches; default: letters, digits, '.', '_' and '-', which does not come first"`
	Length      int    `json:"length,omitempty" doc:"most characters of a string, or of each word of a list; default 64"`
	Words       int    `json:"words,omitempty" doc:"most words of a list; default 16"`
}

// Type is the type of a parameter.
type Type string

// The types.
const (
	Number  Type = "number"  // 1.5
	Integer Type = "integer" // 12
	Size    Type = "size"    // 4GiB
	Rate    Type = "rate"    // 200MB/s
	BitRate Type = "bitrate" // 1Gbit/s
	String  Type = "string"  // text that matches a pattern
	Choice  Type = "choice"  // one of several
	List    Type = "list"    // words of a command, each a string
)

func types() []Type { return []Type{Number, Integer, Size, Rate, BitRate, String, Choice, List} }

// Text is a value as it is written, a number too.
type Text string

// UnmarshalText takes any text.
func (t *Text) UnmarshalText(text []byte) error { *t = Text(text); return nil }

// names are those of templates: they are names of files, and stand in labels.
var names = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?\z`) }) // made when it is needed: each start of berth would pay

// Parse reads a template. file is its name in messages. The error is a refusal of kind Invalid with all mistakes, whose cause is
// spec.Problems.
func Parse(file string, text []byte) (*Template, error) {
	t := &Template{text: text, dir: filepath.Dir(file), Name: strings.TrimSuffix(filepath.Base(file), extension)}
	checked := false
	err := spec.ParseOne(file, text, "a template", t, func(t *Template) []vnode.Problem {
		checked = true
		return check(t)
	})
	if err == nil && !checked {
		err = spec.Problems{{File: file, Line: 1, Column: 1, Msg: "no template in this file: at least node, with an image"}}
	}
	if err != nil {
		return nil, &refuse.Error{Kind: refuse.Invalid, What: err.Error(), Err: err}
	}
	return t, nil
}

// Read reads the template with this name in a folder of templates.
func Read(dir, name string) (*Template, error) {
	if !names().MatchString(name) {
		return nil, refuse.Invalidf("%.80q is not the name of a template: lower-case letters, digits and '-' between them, at most 48", name)
	}
	text, err := readOwn(dir, name+extension)
	if errors.Is(err, fs.ErrNotExist) {
		all, _ := Names(dir)
		hint := "berth template ls lists them"
		if meant := suggest.To(name, all); meant != "" {
			hint = "did you mean " + meant + "?"
		}
		return nil, &refuse.Error{Kind: refuse.NotFound, What: "there is no template " + name, Remedy: hint, Err: err}
	}
	if err != nil {
		return nil, err
	}
	return Parse(filepath.Join(dir, name+extension), text)
}

// Names returns the names of the templates in a folder; none if there is no folder.
func Names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	var all []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), extension); ok && names().MatchString(name) {
			all = append(all, name)
		}
	}
	return all, nil
}

// readOwn reads a file that only root can write, in a folder that only root can write: the author of a template can become
// root on the host.
func readOwn(dir, name string) ([]byte, error) {
	folder, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("read template: %w", err)
	}
	defer folder.Close()
	if err := owned(folder, unix.S_IFDIR); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(folder.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read template %s: %w", filepath.Join(dir, name), err)
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir, name))
	defer f.Close()
	if err := owned(f, unix.S_IFREG); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, spec.LongestFile+1))
	if err != nil {
		return nil, fmt.Errorf("read template: %w", err)
	}
	return text, nil
}

// owned refuses files that users other than root can write. A process that is not root may also read its own user's files: it
// can make no node.
func owned(f *os.File, kind uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	switch {
	case st.Mode&unix.S_IFMT != kind:
		return refuse.Cannotf("make it a file, not a link or a pipe", "%s is not what a template is kept in", f.Name())
	case st.Uid != 0 && int(st.Uid) != os.Geteuid(), st.Mode&0o022 != 0:
		return refuse.Cannotf("chown root "+f.Name()+"; chmod go-w "+f.Name(),
			"others than root can write %s, and whoever writes a template is root: owner %d, mode %04o", f.Name(), st.Uid, st.Mode&0o7777)
	}
	return nil
}

// For refuses to make nodes of the template for an operator whom it does not name. The error is a *roles.Denied.
func (t *Template) For(who roles.Who) error {
	if len(t.Operators) == 0 || who.Role != roles.Operator || slices.Contains(t.Operators, who.Name) {
		return nil
	}
	return &roles.Denied{Who: who, Act: roles.NodeMake, Refusal: refuse.Error{
		Kind: refuse.Cannot, What: fmt.Sprintf("%s may not make nodes of template %s", who, t.Name),
		Remedy: "it is for other operators; an admin of the host may add the name to its operators",
	}}
}

// Make makes a node of the template for its owner. given are the values of parameters by name: text as in the command line, or
// values of JSON. The error is a refusal of kind Invalid that names all mistakes.
func (t *Template) Make(owner, name string, given map[string]any) (*vnode.Node, error) {
	if err := roles.CheckName(owner); err != nil {
		return nil, err
	}
	fresh, err := Parse(filepath.Join(t.dir, t.Name+extension), t.text) // a node of its own: values go into it
	if err != nil {
		return nil, err
	}
	n := &fresh.Node
	var wrong []string
	for _, p := range slices.Sorted(maps.Keys(given)) {
		if _, ok := t.Parameters[p]; !ok {
			wrong = append(wrong, t.unknown(p))
		}
	}
	if len(given) > len(t.Parameters)+16 { // say no more of a flood
		wrong = wrong[:min(len(wrong), 16)]
	}
	for _, key := range slices.Sorted(maps.Keys(t.Parameters)) {
		p := t.Parameters[key]
		value, isGiven := given[key]
		if !isGiven && p.Default != nil {
			value, isGiven = string(*p.Default), true
		}
		switch {
		case isGiven:
			if err := p.apply(n, &t.Node, value); err != nil {
				wrong = append(wrong, "parameter "+key+": "+err.Error())
			}
		case !p.has(&t.Node):
			wrong = append(wrong, "parameter "+key+": no value: "+p.Bounds())
		}
	}
	n.Name = name
	if t.Numbered {
		if err := number(n, t.Highest); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	if n.Labels == nil {
		n.Labels = vnode.Labels{}
	}
	n.Labels[roles.OwnerLabel], n.Labels[roles.TemplateLabel] = owner, t.Name
	if len(wrong) == 0 {
		for _, p := range vnode.Validate(n) {
			wrong = append(wrong, p.String())
		}
	}
	if len(wrong) > 0 {
		return nil, refuse.Invalidf("template %s: %s", t.Name, strings.Join(wrong, "\ntemplate "+t.Name+": "))
	}
	return t.again(n)
}

// number adds the number at the end of a node's name to its addresses. It is at most highest, unless that is 0.
func number(n *vnode.Node, highest int) error {
	digits := n.Name[strings.LastIndexByte(n.Name, '-')+1:]
	add, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || digits == n.Name {
		return fmt.Errorf("%.80q does not end in '-' and a number, from which its addresses come", n.Name)
	}
	if highest > 0 && add > uint64(highest) {
		return fmt.Errorf("%s: the highest number is %d: the addresses above are not for this template's nodes", n.Name, highest)
	}
	for i := range n.Network {
		for j, text := range n.Network[i].Address {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return err
			}
			bytes, carry := p.Addr().AsSlice(), add
			for k := len(bytes) - 1; k >= 0; k-- {
				carry += uint64(bytes[k])
				bytes[k], carry = byte(carry), carry>>8
			}
			a, _ := netip.AddrFromSlice(bytes)
			if carry != 0 || !p.Contains(a) {
				return fmt.Errorf("%s: %s and %d is not in the network", n.Name, text, add)
			}
			n.Network[i].Address[j] = netip.PrefixFrom(a, p.Bits()).String()
		}
	}
	return nil
}

// again writes the node as YAML and reads it as any spec is read: a node that cannot be read back is refused.
func (t *Template) again(n *vnode.Node) (*vnode.Node, error) {
	text, err := spec.Marshal(n)
	if err != nil {
		return nil, fmt.Errorf("template %s: %w", t.Name, err)
	}
	nodes, err := spec.Parse("template "+t.Name, text)
	if err != nil {
		return nil, err
	}
	if len(nodes) != 1 {
		return nil, refuse.Invalidf("template %s: its values make %d nodes, not one", t.Name, len(nodes))
	}
	return nodes[0], spec.Resolve(nodes[0], t.dir)
}

func (t *Template) unknown(key string) string {
	all := slices.Sorted(maps.Keys(t.Parameters))
	hint := "it has " + strings.Join(all, ", ")
	if meant := suggest.To(key, all); meant != "" {
		hint = "did you mean " + meant + "?"
	}
	if len(all) == 0 {
		hint = "it has none"
	}
	return fmt.Sprintf("%.80q is no parameter of it; %s", key, hint)
}
