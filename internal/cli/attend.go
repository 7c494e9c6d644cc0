package cli

import (
	"context"
	"fmt"

	"berth/internal/node"
)

// attended opens the Berth for a command that only reads. If the keeper was killed, attended starts it again and says so
// on standard error.
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
