package step

import (
	"context"
	"fmt"
)

// Do does and verifies a step without a journal.
func Do(ctx context.Context, s Step) error {
	err := s.Do(ctx)
	if err == nil {
		err = s.Verify(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	return nil
}
