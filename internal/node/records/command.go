package records

import (
	"cmp"

	"berth/internal/image"
	"berth/internal/node/plan"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
)

// CommandOf returns the command of the node's process 1: the spec's command, else the image's own. An init that was
// installed in the node later, into its delta, is one too.
func (r Nodes) CommandOf(n *vnode.Node, img image.Image) (plan.Command, error) {
	c := plan.Command{Args: n.Command}
	if len(c.Args) == 0 {
		c.Args = img.Config.Command()
	}
	upper := ""
	if n.Delta.In != vnode.InMemory && !n.IsMachine() { // what a machine wrote is on a disk that the host never mounts
		if s, err := r.Stored(n.Name); err == nil && SameRoot(s.Now, n) {
			upper = (&image.Delta{Path: r.Layout.Node(n.Name).Delta()}).Upper()
		}
	}
	c.Init = runner.Init(image.InitKind(img, upper, c.Args))
	c.Stop = c.Init.StopSignal()
	if sig, err := vnode.ParseSignal(cmp.Or(n.Stop.Signal, img.Config.StopSignal)); err == nil { // Validate has seen the spec's
		c.Stop = sig
	}
	u, err := image.FindUser(img, upper, n.HasID, n.User)
	c.User = runner.User{UID: u.UID, GID: u.GID, Additional: u.Groups}
	return c, err
}

// UserInImage finds a user in a node's image. For a machine: what the guest wrote into its own files is the guest's affair.
func (r Nodes) UserInImage(n *vnode.Node, who string) (*runner.User, error) {
	img, err := image.Open(r.Layout).Resolve(n.Image)
	if err != nil {
		return nil, err
	}
	u, err := image.FindUser(img, "", n.HasID, who)
	if err != nil {
		return nil, err
	}
	return &runner.User{UID: u.UID, GID: u.GID, Additional: u.Groups}, nil
}

// SameRoot reports whether two specs of a node have the same root, so that the files that the node wrote stay.
func SameRoot(a, b *vnode.Node) bool {
	return a.IsMachine() == b.IsMachine() && a.Image == b.Image && a.Delta == b.Delta && a.UserNS() == b.UserNS() && vnode.KeepsOwners(a.Users, b.Users)
}
