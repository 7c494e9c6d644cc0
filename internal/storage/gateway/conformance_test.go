package gateway_test

import (
	"testing"

	"berth/internal/storage/gateway"
	"berth/internal/storage/gateway/gatewaytest"
)

func TestBind(t *testing.T) {
	gatewaytest.Suite{Gateway: gateway.Bind{}, Source: gatewaytest.Folder, Small: gatewaytest.SmallFolder, Files: files(t, 0), Kept: kept()}.Run(t)
}
