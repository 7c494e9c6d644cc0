package server

import (
	"net/http"

	"berth/internal/api"
	"berth/internal/audit"
	"berth/internal/may"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// Audit keeps the line of an act, before it begins or when it has ended; why is why it was refused or failed. The error says why the line
// is not kept, if it is of an act that must not begin without one.
type Audit func(line audit.Line, why error) error

// line returns the line of an act of somebody.
func line(w may.Who, req *http.Request, act may.Act, on string) audit.Line {
	return audit.Line{Who: w.Name, Role: w.Role, Via: w.Via, From: req.RemoteAddr, Act: act, On: on}
}

// begins keeps that an act begins that the caller may do. detail is what its path does not say. An error refuses the act.
func (c *call) begins(detail string) error {
	c.line.Detail = detail
	err := c.server.Audit.begins(c.line)
	c.line.Begun = err == nil
	return err
}

// begins keeps that an act begins. What cannot be kept is not begun: 507.
func (a Audit) begins(line audit.Line) error {
	if a == nil {
		return nil
	}
	line.Begun, line.Result = true, audit.Begins
	if err := a(line, nil); err != nil {
		return &statusError{http.StatusInsufficientStorage, err}
	}
	return nil
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
