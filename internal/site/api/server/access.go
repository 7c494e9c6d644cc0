package server

import (
	"net/http"

	"berth/internal/site/api"
	"berth/internal/site/audit"
	"berth/internal/spec/roles"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// line returns the line of the audit for an act of a caller.
func line(w roles.Who, req *http.Request, act roles.Act, on string) audit.Line {
	return audit.Line{Who: w.Name, Role: w.Role, Via: w.Via, From: req.RemoteAddr, Act: act, On: on}
}

// may refuses an act on nodes of these owners that the caller's role does not allow.
func (c *call) may(act roles.Act, owner ...roles.Owner) error {
	return roles.Check(c.who, act, owner...)
}

// owner returns whose nodes the caller may do this to; "" if to any.
func (c *call) owner(act roles.Act) roles.Owner {
	if c.may(act) == nil {
		return ""
	}
	return roles.Owner(c.who.Name)
}

// mayTo refuses an act on a node that the caller's role does not allow. For a caller who sees only nodes of their own, the node
// of another owner is not found.
func (c *call) mayTo(act roles.Act, name string) error {
	if c.may(act) == nil {
		return nil // to any node
	}
	labels, err := c.server.Host.Labels(name)
	if err != nil {
		return err
	}
	of := roles.OwnerOf(labels)
	if !roles.Sees(c.who, of) {
		return refuse.NotFoundf("no node %s", name)
	}
	return c.may(act, of)
}

// mayMake refuses to make a node from a template if a node of another owner has its name.
func (c *call) mayMake(name string) error {
	if err := vnode.CheckName(name); err != nil {
		return refuse.Invalidf("name: %w", err)
	}
	labels, err := c.server.Host.Labels(name)
	switch {
	case refuse.KindOf(err) == refuse.NotFound:
		return c.may(roles.NodeMake, roles.Owner(c.who.Name))
	case err != nil:
		return err
	}
	return c.may(roles.NodeMake, roles.OwnerOf(labels))
}

// on returns the thing that the path of a request names.
func on(r *http.Request) string {
	for _, part := range []string{"name", "image", "host", "template"} {
		if v := r.PathValue(part); v != "" {
			return v
		}
	}
	return ""
}

// mayRun refuses a command line that the caller may not run, or that no client may: one with another root, or one that only
// berth's own processes use.
func (c *call) mayRun(s api.Start) error {
	if err := relayable(s.Args); err != nil {
		return err
	}
	if c.may(roles.Command) == nil {
		return nil
	}
	is, err := reads(s.Args)
	if !is {
		return c.may(roles.Command)
	}
	if err != nil {
		return err
	}
	if len(s.Files) > 0 {
		return refuse.Cannotf("an admin may", "files go with no command that only reads")
	}
	return c.may(roles.CommandRead)
}
