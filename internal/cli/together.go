package cli

import (
	"bytes"
	"io"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"berth/internal/node"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// eachNode calls do for every node, several at once, goes on after a failure, and joins the failures in the order of the names. The exit code
// is that of the first. What do writes to out is shown in that order too, as soon as it and all before it are known.
func (a *app) eachNode(b *node.Berth, names []string, do func(name string, out io.Writer) error) error {
	mountsRemote := func(i int) bool {
		n, err := b.Spec(names[i])
		return err == nil && slices.ContainsFunc(n.Mounts, func(m vnode.Mount) bool { return m.Remote() })
	}
	return a.together(len(names), mountsRemote, func(i int, out io.Writer) error { return do(names[i], out) })
}

// together is eachNode by the nodes' numbers. A file server may be a node too: where clients follow other nodes, they are begun when those are
// done, and the reverse. So servers that come first are up before their clients, and clients that come first stop before their servers.
func (a *app) together(nodes int, client func(i int) bool, do func(i int, out io.Writer) error) error {
	var failed []error
	for from := 0; from < nodes; {
		to := from + 1
		kind := to < nodes && client(from) // nobody asks of what kind the last one is
		for ; to < nodes && client(to) == kind; to++ {
		}
		failed = append(failed, a.atOnce(from, to, do)...)
		from = to
	}
	return refuse.Join(failed)
}

// atOnce is together for the nodes of a range, which do not need each other. It returns the failures.
func (a *app) atOnce(from, to int, do func(i int, out io.Writer) error) (failed []error) {
	type result struct {
		out bytes.Buffer
		err error
	}
	results := make([]chan *result, to-from)
	for i := range results {
		results[i] = make(chan *result, 1)
	}
	go func() {
		var several errgroup.Group
		several.SetLimit(2 * runtime.NumCPU()) // most of what a node's act does is to wait, for the kernel and the disk
		for i, done := range results {
			several.Go(func() error {
				r := &result{}
				r.err = do(from+i, &r.out)
				done <- r
				return nil
			})
		}
	}()
	for _, done := range results {
		r := <-done
		_, _ = r.out.WriteTo(a.Out)
		if r.err != nil {
			failed = append(failed, r.err)
		}
	}
	return failed
}
