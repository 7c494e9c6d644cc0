package address

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/sys/file"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Pool is a set of MACs that nodes may take, lowest first. Its file has one address or range FIRST-LAST per line, both
// ends included; # begins a comment.
//
//	# what the network's people gave to this host
//	02:00:5e:10:00:01
//	02:00:5e:10:01:00-02:00:5e:10:01:ff
type Pool []MACRange // sorted; ranges neither overlap nor touch

// MACRange is a range of MACs, both ends included. Both ends have the same first byte, so all of them are unicast.
type MACRange struct{ First, Last uint64 }

// ReadPool reads the pool with this name in dir; NotFound if there is none. A file that a power cut has emptied is refused: the nodes that
// have a MAC of it would get others.
func ReadPool(dir, name string) (Pool, error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse.NotFoundf("no MAC pool %s; make it with berth net pool add %s FIRST-LAST", name, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read MAC pool %s: %w", name, err)
	}
	p, err := parsePool(data)
	if err == nil && strings.Trim(string(data), " \t\r\n\x00") == "" {
		err = errors.New("it is empty, as after a power failure")
	}
	if err != nil {
		return nil, &refuse.Error{
			Kind: refuse.Invalid, Err: err, What: fmt.Sprintf("MAC pool %s: %v", filepath.Join(dir, name), err),
			Remedy: "write what it had into that file again, an address or FIRST-LAST a line; berth net export lists what nodes have of it",
		}
	}
	return p, nil
}

// parsePool reads the text of a pool's file.
func parsePool(text []byte) (Pool, error) {
	var p Pool
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		r, err := ParseMACRange(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		p = append(p, r)
	}
	return p.merged(), lines.Err()
}

// ParseMACRange parses an address or a range FIRST-LAST.
func ParseMACRange(s string) (MACRange, error) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	a, err := parseMAC(strings.TrimSpace(first))
	if err != nil {
		return MACRange{}, err
	}
	b, err := parseMAC(strings.TrimSpace(last))
	switch {
	case err != nil:
		return MACRange{}, err
	case a > b:
		return MACRange{}, fmt.Errorf("%s: its end is below its begin", s)
	case a>>40 != b>>40:
		return MACRange{}, fmt.Errorf("%s: both ends of a range have the same first byte", s)
	}
	return MACRange{a, b}, nil
}

func parseMAC(s string) (uint64, error) {
	a, err := mac.Parse(s)
	if err != nil {
		return 0, err
	}
	if err := a.Check(); err != nil {
		return 0, fmt.Errorf("%s %w", s, err)
	}
	return a.Number(), nil
}

func (r MACRange) String() string {
	if r.First == r.Last {
		return mac.FromNumber(r.First).String()
	}
	return mac.FromNumber(r.First).String() + "-" + mac.FromNumber(r.Last).String()
}

// merged sorts the ranges and joins those that overlap or touch.
func (p Pool) merged() Pool {
	p = slices.Clone(p)
	slices.SortFunc(p, func(a, b MACRange) int { return cmp.Compare(a.First, b.First) })
	var out Pool
	for _, r := range p {
		if n := len(out); n > 0 && r.First <= out[n-1].Last+1 && r.First>>40 == out[n-1].First>>40 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// Size returns the number of MACs in the pool.
func (p Pool) Size() uint64 {
	var n uint64
	for _, r := range p {
		n += r.Last - r.First + 1
	}
	return n
}

// Has reports whether the pool contains a MAC.
func (p Pool) Has(a mac.Address) bool {
	m := a.Number()
	return slices.ContainsFunc(p, func(r MACRange) bool { return r.First <= m && m <= r.Last })
}

// All yields the pool's MACs, lowest first.
func (p Pool) All() iter.Seq[mac.Address] {
	return func(yield func(mac.Address) bool) {
		for _, r := range p {
			for m := r.First; m <= r.Last; m++ {
				if !yield(mac.FromNumber(m)) {
					return
				}
			}
		}
	}
}

// Text returns the content of the pool's file.
func (p Pool) Text() string {
	var b strings.Builder
	for _, r := range p {
		b.WriteString(r.String() + "\n")
	}
	return b.String()
}

// AddToPool adds ranges to the pool with this name in dir, and makes the pool if needed. Comments in the file are lost.
// The caller holds the host-wide lock.
func AddToPool(dir, name string, more []MACRange) (Pool, error) {
	p, err := ReadPool(dir, name)
	if err != nil && refuse.KindOf(err) != refuse.NotFound {
		return nil, err
	}
	p = append(p, more...).merged()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make MAC pool %s: %w", name, err)
	}
	if err := file.Write(filepath.Join(dir, name), []byte(p.Text()), 0o600); err != nil {
		return nil, fmt.Errorf("write MAC pool %s: %w", name, err)
	}
	return p, nil
}

// Pools returns the names of the pools in dir.
func Pools(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list MAC pools: %w", err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), file.Unwritten) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
