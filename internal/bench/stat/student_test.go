package stat

import (
	"math"
	"testing"
)

// Values of the tables in any textbook.
func TestStudentQuantile(t *testing.T) {
	for _, c := range []struct{ p, freedom, want float64 }{
		{.975, 1, 12.7062}, {.95, 2, 2.91999}, {.975, 4, 2.77645}, {.975, 10, 2.22814}, {.95, 30, 1.69726}, {.975, 1e6, 1.95997},
	} {
		if got := StudentQuantile(c.p, c.freedom); math.Abs(got-c.want) > 2e-4*c.want {
			t.Errorf("%v with %v: %v, want %v", c.p, c.freedom, got, c.want)
		}
	}
}
