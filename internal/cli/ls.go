package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/cli/show"
	"berth/internal/node"
	"berth/internal/node/protect"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

func (a *app) lsCmd() *cobra.Command {
	var filters []string
	c := &cobra.Command{
		Use: "ls", Short: "list the nodes",
		Long: `List the nodes of this host, with the exit status of those that ended, and how
often one was restarted that does not stay up. A node without a user namespace
is marked NO-USERNS: its root is the host's. One whose spec forces a device on
it that no node should have is marked UNSAFE-DEVICE, one whose spec lets it send
from others' addresses MAY-SPOOF, one in which set-user-id programs work by its
spec NEW-PRIVILEGES, one that has ids of the host as they are HOST-USERS.
NOT-CONNECTED is one whose bridge, parent or published port is gone, LIMITS-LOST
one whose limits or processes another program has changed or moved: the lines
below the list say which, and why a restart failed. Ports of the host that lead
to a node are a column of the list, or lines below it on a narrow terminal.
Services of the host that berth protect gave class storage follow, unless
--filter asks for nodes with a label.`,
		Example: "  berth ls\n  berth ls --json\n  berth ls --filter label=team=storage",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := a.attended(cmd.Context())
			labels, err := labelFilters(filters)
			if err != nil {
				return err
			}
			all, err := b.List(cmd.Context())
			if err != nil {
				return err
			}
			b.Look(cmd.Context(), all)
			if len(labels) > 0 {
				all = slices.DeleteFunc(all, func(s node.Status) bool { return !labels.match(s.Labels) })
				if a.json {
					return a.printJSON(listed(all, nil))
				}
				return show.List(a.Out, text.Columns(a.Out), all, nil)
			}
			protected, err := a.services().All(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(listed(all, protected))
			}
			return show.List(a.Out, text.Columns(a.Out), all, protected)
		},
	}
	c.Flags().StringArrayVar(&filters, "filter", nil, "only nodes with a label: `label=NAME`[=VALUE]; of several, all")
	return a.jsonFlag(c)
}

// labelFilter is a label that a node must have.
type labelFilter struct {
	name, value string
	anyValue    bool
}

type labelFilterList []labelFilter

func labelFilters(texts []string) (all labelFilterList, err error) {
	for _, text := range texts {
		label, ok := strings.CutPrefix(text, "label=")
		if !ok || label == "" {
			return nil, refuse.Invalidf("--filter %s: want label=NAME or label=NAME=VALUE", text)
		}
		name, value, given := strings.Cut(label, "=")
		all = append(all, labelFilter{name, value, !given})
	}
	return all, nil
}

func (l labelFilterList) match(labels vnode.Labels) bool {
	for _, f := range l {
		if value, has := labels[f.name]; !has || !f.anyValue && value != f.value {
			return false
		}
	}
	return true
}

// listed puts nodes and protected services into one list.
func listed(nodes []node.Status, protected []protect.Service) []any {
	all := make([]any, 0, len(nodes)+len(protected))
	for _, n := range nodes {
		all = append(all, n)
	}
	for _, p := range protected {
		all = append(all, p)
	}
	return all
}
