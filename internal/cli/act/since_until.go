package act

import (
	"time"

	"github.com/spf13/cobra"

	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

func timeFlags(c *cobra.Command, since, until *string) {
	c.Flags().StringVar(since, "since", "", "from `TIME` on: 10m (ago), 15:04, \"2006-01-02 15:04\"")
	c.Flags().StringVar(until, "until", "", "up to `TIME`")
}

// moment reads the value of a flag; the zero time for none.
func moment(flag, value string) (time.Time, error) {
	if value == "" {
		return time.Time{}, nil
	}
	t, err := text.When(value, time.Now())
	if err != nil {
		return t, refuse.Invalidf("--%s: %w", flag, err)
	}
	return t, nil
}
