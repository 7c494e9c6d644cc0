package cli

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/image"
	"berth/internal/node"
	"berth/internal/site/upload"
	"berth/internal/spec"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// readSpecs reads the nodes of a file; "-" is standard input.
func (a *app) readSpecs(ctx context.Context, file string) ([]*vnode.Node, error) {
	dir := filepath.Dir(file)
	if file == "-" {
		dir = "."
	}
	from := a.In
	if f, there, ok, err := upload.Open(file); err != nil {
		return nil, refuse.Invalidf("read spec: %w", err)
	} else if ok {
		defer f.Close()
		from, dir = f, there
	} else if file != "-" {
		from = nil
	}
	data, err := a.readSpec(ctx, file, from)
	if err != nil {
		return nil, refuse.Invalidf("read spec: %w", err)
	}
	nodes, err := spec.ParseHinted(file, data, func(text string) string { return a.imageHint(text, dir) })
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if err := spec.Resolve(n, dir); err != nil {
			return nil, err
		}
		vnode.Defaults(n)
	}
	return nodes, nil
}

// readSpec reads at most one byte more than a spec may have, because the file may be endless. If it is a pipe without a writer,
// readSpec waits until ctx ends. from is nil if the file is to be opened.
func (a *app) readSpec(ctx context.Context, file string, from *os.File) ([]byte, error) {
	type answer struct {
		data []byte
		err  error
	}
	read := make(chan answer, 1)
	go func() {
		f := from
		if f == nil {
			opened, err := os.Open(file)
			if err != nil {
				read <- answer{err: err}
				return
			}
			defer opened.Close()
			f = opened
		}
		data, err := io.ReadAll(io.LimitReader(f, spec.LongestFile+1))
		read <- answer{data, err}
	}()
	select {
	case r := <-read:
		return r.data, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// valid returns an error that names all faults of a node that flags describe.
func valid(n *vnode.Node) error {
	var all []string
	for _, p := range vnode.Validate(n) {
		if p.Field == "command" && len(n.Command) == 0 {
			return refuse.Invalidf("no command given: image host has none of its own; berth run --image host -- CMD")
		}
		all = append(all, flagOf(p.Field)+": "+p.Msg)
	}
	if len(all) > 0 {
		return refuse.Invalidf("%s", strings.Join(all, "\n"))
	}
	return nil
}

// flagOf returns the flag of berth run that sets a key of a spec: --network for network[0].address[0]. A key without a
// flag is returned as it is.
func flagOf(field string) string {
	top, _, _ := strings.Cut(field, ".")
	name, _, _ := strings.Cut(top, "[")
	flag := map[string]string{
		"network": "network", "mounts": "mount", "devices": "device", "name": "name", "hostname": "hostname", "pids": "pids",
		"user": "user", "workdir": "workdir", "env": "env", "labels": "label", "tmpfs": "tmpfs", "sysctls": "sysctl", "stop.signal": "stop-signal",
		"cpu.max": "cpu", "cpu.set": "cpuset", "memory.max": "memory",
	}
	if name == "network" && strings.Contains(field, ".ports") {
		return "--publish"
	}
	for _, key := range []string{field, name} {
		if flag[key] != "" {
			return "--" + flag[key]
		}
	}
	return field
}

func parseMount(s string) (vnode.Mount, error) {
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 || len(parts) == 3 && parts[2] != "ro" {
		return vnode.Mount{}, refuse.Invalidf("--mount %s: want SOURCE:TARGET or SOURCE:TARGET:ro", s)
	}
	if source := parts[0]; source != "" && !strings.Contains(source, "/") { // a volume with a name, in other engines
		return vnode.Mount{}, refuse.Invalidf("--mount %s: %s is no folder of the host: give its absolute path; there are no volumes with names", s, source)
	}
	return vnode.Mount{Source: parts[0], Target: parts[1], ReadOnly: len(parts) == 3}, nil
}

// meant begins a hint that proposes an image.
const meant = "did you mean "

// imageHint says which image an invalid text probably means. A relative path begins at dir.
func (a *app) imageHint(text, dir string) string {
	return image.Open(a.layout()).Hint(text, dir)
}

func specFlag(c *cobra.Command, files *[]string) {
	c.Flags().StringArrayVarP(files, "file", "f", nil, "the spec, a YAML `FILE`; - is standard input; once for each file")
	_ = c.MarkFlagFilename("file", "yaml", "yml") // fails only for an unknown flag
}

// specsAndBerth reads the specs of the files that -f names, in order, and opens the Berth that keeps the nodes.
func (a *app) specsAndBerth(ctx context.Context, files []string) ([]*vnode.Node, *node.Berth, error) {
	if len(files) == 0 {
		return nil, nil, refuse.Invalidf("no spec given: -f FILE, or -f - for standard input")
	}
	b, err := a.openToStart()
	if err != nil {
		return nil, nil, err
	}
	var all []*vnode.Node
	for _, file := range files {
		nodes, err := a.readSpecs(ctx, file)
		if err != nil {
			return nil, nil, err
		}
		for _, n := range nodes {
			if find(all, n.Name) != nil {
				return nil, nil, refuse.Invalidf("%s: node %s is in a file before it", file, n.Name)
			}
		}
		all = append(all, nodes...)
	}
	return all, b, nil
}

func byName(nodes []*vnode.Node) []string {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	return names
}

func find(nodes []*vnode.Node, name string) *vnode.Node {
	for _, n := range nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}
