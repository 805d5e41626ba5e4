package cdc

import (
	"testing"

	"github.com/tidemark/tidemark/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
