package netif

import (
	"context"
	"path/filepath"
	"testing"
	"time"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "lock")
	f, err := Lock(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := Lock(ctx, path); err == nil {
		t.Fatal("locked twice")
	}
	f.Close()
	if f, err = Lock(context.Background(), path); err != nil {
		t.Fatal(err)
	}
	f.Close()
}
