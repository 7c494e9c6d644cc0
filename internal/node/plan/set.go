package plan

import (
	"encoding/json"

	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// KeyValue is one change of berth set.
type KeyValue struct {
	Key, Value string
}

// Changed returns a copy of the node with the changes made.
func Changed(n *vnode.Node, changes []KeyValue) (*vnode.Node, error) {
	text, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	var c vnode.Node
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	for _, kv := range changes {
		if err := vnode.Change(&c, kv.Key, kv.Value); err != nil {
			return nil, refuse.Invalidf("%w", err)
		}
	}
	if problems := vnode.Validate(&c); len(problems) > 0 {
		return nil, refuse.Invalidf("%s", problems[0])
	}
	return &c, nil
}
