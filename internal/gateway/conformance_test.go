package gateway_test

import (
	"testing"

	"berth/internal/gateway"
	"berth/internal/gateway/gatewaytest"
)

func TestBind(t *testing.T) {
	gatewaytest.Suite{Gateway: gateway.Bind{}, Source: gatewaytest.Folder, Small: gatewaytest.SmallFolder, Files: files(t, 0)}.Run(t)
}
