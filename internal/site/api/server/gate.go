package server

import (
	"net/http"

	"berth/internal/site/api"
	"berth/internal/site/audit"
	"berth/internal/spec/roles"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// line returns the line of an act of somebody.
func line(w roles.Who, req *http.Request, act roles.Act, on string) audit.Line {
	return audit.Line{Who: w.Name, Role: w.Role, Via: w.Via, From: req.RemoteAddr, Act: act, On: on}
}

// may refuses what the caller may not do to nodes of these owners.
func (c *call) may(act roles.Act, owner ...roles.Owner) error {
	return roles.Check(c.who, act, owner...)
}

// mayTo refuses what the caller may not do to a node. For who sees only his own, a node of another is not there.
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

// mayMake refuses a node from a template whose name another's node has.
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

// on returns what the path of a request names.
func on(r *http.Request) string {
	for _, part := range []string{"name", "image", "host", "template"} {
		if v := r.PathValue(part); v != "" {
			return v
		}
	}
	return ""
}

// mayRun refuses a command that the caller may not run, or that no client can: another root, what berth's own processes call.
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
