package tracing

import (
	"testing"

	"hyperkube/internal/testing/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }
