package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth/internal/node"
	"berth/internal/storage/copier"
	"berth/internal/sys/refuse"
	"berth/internal/sys/treetar"
)

func (a *app) cpCmd() *cobra.Command {
	var archive bool
	c := &cobra.Command{
		Use: "cp SRC DST", Short: "copy files into a node or out of it", Args: cobra.ExactArgs(2),
		Long: `Copy a file or a folder between this host and a node, which may run or not: a
stopped one without what its spec mounts. One of SRC and DST is NODE:PATH, where
PATH begins at the node's root; the other is a path of this host, or - for a tar
stream on standard input or output.

As with cp -r, a folder that is there gets SRC under its own name, or with SRC/.
the content of SRC. It keeps its owner and mode, and files in it are replaced by
name. A file has its name only when it is complete. Links are copied as links;
one that SRC or DST itself is, to a folder, is followed.

What is copied in belongs to the user that the node's command runs as, what is
copied out to you; -a keeps owners (as the node's ids) and access control lists.
Left out, and said so: set-user-id bits and file capabilities (kept into a node
with -a), devices, sockets, and the content of /proc and /sys.`,
		Example: `  berth cp nginx.conf wn-001:/etc/nginx/
  berth cp wn-001:/var/log/app.log .
  berth cp -a site/. wn-001:/srv/www
  tar -C data -c . | berth cp - wn-001:/data
  berth cp wn-001:/etc - | tar -t`,
		ValidArgsFunction: a.copyPaths,
		RunE: func(cmd *cobra.Command, args []string) error {
			from, inNode := nodePath(args[0])
			to, intoNode := nodePath(args[1])
			switch {
			case inNode && intoNode:
				return refuse.Invalidf("one of the two must be of this host; between two nodes: berth cp %s - | berth cp - %s", args[0], args[1])
			case !inNode && !intoNode:
				return refuse.Invalidf("neither %s nor %s is NODE:PATH", args[0], args[1])
			}
			at := from
			if intoNode {
				at = to
			}
			root, err := a.open().OpenRoot(cmd.Context(), at.node)
			if err != nil {
				return err
			}
			defer root.Close()
			if intoNode && !root.Lasts {
				return refuse.Busyf("node %s does not run, and what it wrote was in memory (delta.in): berth start %s, then copy", at.node, at.node)
			}
			tally, err := a.copy(cmd, root, from.path, to.path, intoNode, archive)
			return a.copied(tally, err)
		},
	}
	c.Flags().BoolVarP(&archive, "archive", "a", false, "keep owners and access control lists")
	return c
}

// copy copies a path, - for a stream.
func (a *app) copy(cmd *cobra.Command, root *node.Root, from, to string, in, owners bool) (treetar.Tally, error) {
	progress, done := a.byteProgress("copy")
	defer done()
	ctx, o := cmd.Context(), copier.Options{Owners: owners, UID: int(root.User.UID), GID: int(root.User.GID), Progress: progress}
	switch {
	case in && from == "-":
		if term.IsTerminal(int(a.In.Fd())) {
			return treetar.Tally{}, refuse.Invalidf("standard input is a terminal, and - reads a tar stream")
		}
		return root.FromStream(ctx, a.In, to, o)
	case in:
		return root.FromHost(ctx, from, to, o)
	case to == "-":
		return a.toStdout(func(out *os.File) (treetar.Tally, error) { return root.ToStream(ctx, from, out) })
	}
	return root.ToHost(ctx, from, to, o)
}

// copied says what was left out.
func (a *app) copied(t treetar.Tally, err error) error {
	if notes := t.Notes(); len(notes) > 0 && err == nil {
		fmt.Fprintf(a.Err, "berth: %s\n", strings.Join(notes, "; "))
	}
	if err != nil {
		return err
	}
	return t.Failed()
}

// place is a path, of a node or of this host.
type place struct{ node, path string }

// nodePath reads NODE:PATH. An argument whose colon comes after a slash is a path of this host: ./a:b.
func nodePath(arg string) (place, bool) {
	name, path, ok := strings.Cut(arg, ":")
	if !ok || name == "" || strings.Contains(name, "/") {
		return place{path: arg}, false
	}
	if path == "" {
		path = "/"
	}
	return place{name, path}, true
}

// copyPaths offers NODE: and, for a node that was named, the paths in it.
func (a *app) copyPaths(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	at, inNode := nodePath(typed)
	if !inNode {
		names, _ := a.nodeNames(0)(cmd, nil, typed)
		for i, n := range names {
			name, state, _ := strings.Cut(n, "\t")
			names[i] = name + ":\t" + state
		}
		return names, cobra.ShellCompDirectiveNoSpace
	}
	root, err := a.open().OpenRoot(cmd.Context(), at.node)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer root.Close()
	var offered []string
	for _, name := range root.Names(cmd.Context(), at.path) {
		offered = append(offered, at.node+":"+name)
	}
	return offered, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}
