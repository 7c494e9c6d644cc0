package server

import (
	"net/http"

	"berth/internal/api"
	"berth/internal/audit"
	"berth/internal/may"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// line returns the line of an act of somebody.
func line(w may.Who, req *http.Request, act may.Act, on string) audit.Line {
	return audit.Line{Who: w.Name, Role: w.Role, Via: w.Via, From: req.RemoteAddr, Act: act, On: on}
}

// may refuses what the caller may not do to nodes of these owners.
func (c *call) may(act may.Act, owner ...may.Owner) error { return may.Check(c.who, act, owner...) }

// mayTo refuses what the caller may not do to a node. For who sees only his own, a node of another is not there.
func (c *call) mayTo(act may.Act, name string) error {
	if c.may(act) == nil {
		return nil // to any node
	}
	labels, err := c.server.Host.Labels(name)
	if err != nil {
		return err
	}
	of := may.OwnerOf(labels)
	if !may.Sees(c.who, of) {
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
		return c.may(may.NodeMake, may.Owner(c.who.Name))
	case err != nil:
		return err
	}
	return c.may(may.NodeMake, may.OwnerOf(labels))
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
	if c.may(may.Command) == nil {
		return nil
	}
	is, err := reads(s.Args)
	if !is {
		return c.may(may.Command)
	}
	if err != nil {
		return err
	}
	if len(s.Files) > 0 {
		return refuse.Cannotf("an admin may", "files go with no command that only reads")
	}
	return c.may(may.CommandRead)
}
