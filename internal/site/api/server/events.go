package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/node/events"
	"berth/internal/site/api"
	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

// told is an event with the id after which a client may ask for the next ones.
type told struct {
	ID string `json:"id"`
	events.Event
}

// eventID is made of the event itself, so that it stays the same when the file turns over, and needs nothing beside it.
func eventID(e events.Event) string {
	h := fnv.New32a()
	h.Write([]byte(e.Node + "/" + e.Event))
	return strconv.FormatInt(e.Time.UnixNano(), 36) + "-" + strconv.FormatUint(uint64(h.Sum32()), 36)
}

// flowing writes a stream, part by part, to a client that may read as slowly as it likes: one that is gone the kernel notices.
type flowing struct {
	*call
	times *http.ResponseController
}

func (c *call) flow(kind string) flowing {
	c.Header().Set("Content-Type", kind)
	c.Header().Set("X-Content-Type-Options", "nosniff")
	c.Header().Set("Cache-Control", "no-store")
	f := flowing{c, http.NewResponseController(c.ResponseWriter)}
	_ = f.times.SetReadDeadline(time.Time{})
	return f
}

// Header returns the headers of the answer.
func (c *call) Header() http.Header { return c.ResponseWriter.Header() }

func (f flowing) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	if err == nil {
		err = f.times.Flush()
	}
	return n, err
}

func (c *call) logs() (any, error) {
	name, err := c.name(roles.NodeLogs)
	if err != nil {
		return nil, err
	}
	if _, err := c.server.Host.Node(c.ctx(), name, c.owner(roles.NodeLogs)); err != nil { // before the answer has begun
		return nil, err
	}
	out := c.flow("application/octet-stream")
	out.WriteHeader(http.StatusOK)
	_ = out.times.Flush()
	wish := api.Logs{Lines: int(c.query.number("lines", -1)), Follow: c.query.yes("follow")}
	return nil, c.cut(c.server.Host.Logs(c.ctx(), name, c.owner(roles.NodeLogs), wish, out))
}

// cut says of a stream that has begun how it ended. A client that follows ends it by leaving; another that leaves does not have all.
func (c *call) cut(err error) error {
	switch {
	case err == nil, c.ctx().Err() != nil && c.query.yes("follow"):
		return nil
	case c.ctx().Err() != nil:
		return fmt.Errorf("%w: the client is gone: %w", errAnswered, err)
	}
	return fmt.Errorf("%w: %w", errCut, err)
}

func (c *call) events() (any, error) {
	if err := c.may(roles.EventsRead); err != nil {
		return nil, err
	}
	after := c.query.text("after")
	if last := c.Request.Header.Get("Last-Event-ID"); last != "" && after == "" {
		after = last
	}
	sees, err := c.sight()
	if err != nil {
		return nil, err
	}
	if after != "" && !c.known(after) {
		return nil, &statusError{http.StatusGone, refuse.NotFoundf("the event %q is not kept any more: read the list of nodes, then follow without after", after)}
	}
	sse := strings.Contains(c.Request.Header.Get("Accept"), "text/event-stream")
	out := c.flow(map[bool]string{true: "text/event-stream", false: "application/x-ndjson"}[sse])
	out.WriteHeader(http.StatusOK)
	_ = out.times.Flush()
	skip := after != ""
	wish := events.Wish{Nodes: c.query.all("node"), Past: true, Stream: c.query.yes("follow")}
	return nil, c.cut(c.server.Host.Events().Tell(c.ctx(), events.Wish{Past: true, Stream: wish.Stream}, func(e events.Event) error {
		if skip {
			skip = eventID(e) != after
			return nil
		}
		if len(wish.Nodes) > 0 && !slices.Contains(wish.Nodes, e.Node) || !sees(e) {
			return nil
		}
		line, err := json.Marshal(told{eventID(e), e})
		if err == nil && sse {
			line = fmt.Appendf(nil, "id: %s\nevent: %s\ndata: %s\n", eventID(e), e.Event, line)
		}
		if err == nil {
			_, err = out.Write(append(line, '\n'))
		}
		return err
	}))
}

// known reports whether an event is still kept.
func (c *call) known(id string) bool {
	found := errors.New("found")
	ctx, cancel := context.WithCancel(c.ctx())
	defer cancel()
	err := c.server.Host.Events().Tell(ctx, events.Wish{Past: true}, func(e events.Event) error {
		if eventID(e) == id {
			return found
		}
		return nil
	})
	return errors.Is(err, found)
}

// sight says which events the caller sees: all, or those of the caller's own nodes. If another caller's node had the same name
// before, only events after its removal are seen.
func (c *call) sight() (func(events.Event) bool, error) {
	if c.may(roles.NodeRead) == nil {
		return func(events.Event) bool { return true }, nil
	}
	removed := map[string]time.Time{}
	err := c.server.Host.Events().Tell(c.ctx(), events.Wish{Past: true}, func(e events.Event) error {
		if e.Event == events.Removed {
			removed[e.Node] = e.Time
		}
		return nil
	})
	own := map[string]bool{}
	return func(e events.Event) bool {
		if own[e.Node] && e.Event == events.Removed {
			delete(own, e.Node)
			return true
		}
		if !own[e.Node] && e.Time.After(removed[e.Node]) {
			labels, err := c.server.Host.Labels(e.Node)
			own[e.Node] = err == nil && roles.Sees(c.who, roles.OwnerOf(labels))
		}
		return own[e.Node]
	}, err
}
