package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/image"
	"berth/internal/spec/vnode"
)

// words returns what a shell offers for an argument (cobra's ValidArgsFunction).
type words func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective)

// nodeNames offers the nodes that the command line does not name yet, and that are in one of the states, if any are given. most
// is the largest number of names; 0: no bound.
func (a *app) nodeNames(most int, states ...string) words {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, err := a.open().List(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, s := range all {
			if !slices.Contains(args, s.Name) && (len(states) == 0 || slices.Contains(states, s.State)) {
				names = append(names, s.Name+"\t"+s.State)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// imageNames offers the images of the store, with prefix before each name.
func (a *app) imageNames(prefix string) words {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		all, err := image.Open(a.layout()).List()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, r := range all {
			if !slices.Contains(args, r.Name) && (r.Broken == "" || prefix == "") { // a broken one can be removed, not run
				names = append(names, prefix+r.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// removableNames offers the images of the store, also those that are one file.
func (a *app) removableNames(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	names, how := a.imageNames("")(cmd, args, typed)
	files, err := image.Open(a.layout()).ListPacked()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, f := range files {
		names = append(names, namesOf(f)...)
	}
	return names, how
}

// imageRefs offers values of --image.
func (a *app) imageRefs(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	if kind, _, ok := strings.Cut(typed, ":"); ok && kind != string(vnode.OCIImage) {
		return nil, cobra.ShellCompDirectiveDefault // a path
	}
	refs, _ := a.imageNames("oci:")(cmd, nil, typed)
	return append([]string{"host", "dir:", "file:", "oci-layout:", "tar:", "docker://"}, refs...), cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// setKeys offers the nodes, then the keys of the node that the first argument names.
func (a *app) setKeys(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.nodeNames(1)(cmd, args, typed)
	}
	b := a.open()
	n, err := b.Spec(args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	now := map[string]string{}
	for _, s := range vnode.Limits(n) {
		now[s.Key] = "\tnow " + s.Value
	}
	var keys []string
	for _, k := range vnode.Settable(n) {
		keys = append(keys, k+"="+now[k])
	}
	keys = append(keys, vnode.AddDevice+"=\tPATH[:PATH INSIDE][:ACCESS]")
	for _, d := range n.Devices {
		keys = append(keys, vnode.TakeDevice+"="+d.Path)
	}
	return keys, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}
