//go:build real

package likers

import (
	"testing"

	"github.com/tidemark/tidemark/internal/testenv"
)

func init() {
	redisServers["redis-server"] = func(t *testing.T) string { return "redis://" + testenv.RedisServer(t).Addr }
}
