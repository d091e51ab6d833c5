package store

import (
	"testing"

	"hyperkube/internal/testing/testisolate"
)

func TestMain(m *testing.M) { testisolate.Main(m, testisolate.Mounts) }
