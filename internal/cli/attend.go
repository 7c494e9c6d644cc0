package cli

import (
	"context"
	"fmt"

	"berth/internal/node"
)

// attended opens the nodes for a command that reads: where their keeper was killed it is started again, and that is said
// beside the data.
func (a *app) attended(ctx context.Context) (*node.Berth, error) {
	b, err := a.open()
	if err != nil {
		return nil, err
	}
	if note := b.Attend(ctx); note != "" {
		fmt.Fprintln(&visible{w: a.Err}, "berth: "+note)
	}
	return b, nil
}
