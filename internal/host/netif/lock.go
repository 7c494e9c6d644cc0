package netif

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"berth/internal/sys/lock"
)

// Lock is lock.Open of the host-wide lock. It makes the folder of the lock's file if needed.
//
// The steps that change the host's links take the lock themselves, for about a millisecond each: do not hold it while
// they run.
func Lock(ctx context.Context, path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("take the host lock: %w", err)
	}
	f, err := lock.Open(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("take the host lock: %w", err)
	}
	return f, nil
}
