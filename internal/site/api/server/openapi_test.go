package server

import (
	"testing"

	"berth/test/testkit"
)

// TestOpenAPI compares the document that the routes and types make with the kept copy: a change of the API is seen in a diff.
func TestOpenAPI(t *testing.T) {
	made, err := openAPI()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/openapi.json", string(made)+"\n")
}
