# The commands of a working day. `make run` starts tidemark on this machine,
# `make test` checks it, `make lint` reads it; `make help` lists the rest.

MODULE       := github.com/tidemark/tidemark
BIN          := $(CURDIR)/.bin
BUF          := $(BIN)/buf
GOLANGCI     := $(BIN)/golangci-lint
TEST_TIMEOUT := 20m

# Tools are pinned here and installed into .bin/ when missing or of another
# version.
BUF_VERSION       := v1.75.0
PROTOC_GO_VERSION := v1.36.12
VTPROTO_VERSION   := v0.6.0
CONNECT_VERSION   := v2.0.2
GOLANGCI_VERSION  := v2.15.0

# Everything is pure Go; only the race detector needs a C compiler.
export CGO_ENABLED ?= 0

# install NAME, PACKAGE, VERSION
define install
@go version -m $(BIN)/$(1) 2>/dev/null | grep -q '	$(3)	' || \
	{ echo "installing $(1) $(3)" && GOBIN=$(BIN) go install $(2)@$(3); }
endef

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

.PHONY: build
build: ## build ./tidemark
	go build -trimpath -ldflags "-s -w -X main.commit=$(shell git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null)" -o tidemark ./cmd/tidemark

.PHONY: run
run: build ## build and start everything on this machine (./tidemark dev)
	./tidemark dev

.PHONY: test
test: ## run every test (fuzz targets run their seeds), then the race detector
	go test -timeout $(TEST_TIMEOUT) ./...
	$(MAKE) --no-print-directory race

# Packages whose goroutines share memory.
RACE := ./internal/gokakit/... ./internal/ops/... ./internal/cache/... ./internal/cachekeeper/... ./internal/owners/... ./internal/limits/... ./internal/overload/... ./internal/breaker/... ./internal/tlsfiles/... ./internal/kafkaaccess/... ./views/... ./emitters/cdc/... ./processors/... ./client/... ./exports/... ./privacy/... ./risk/...

.PHONY: race
race: ## run the tests of concurrent packages under the race detector
	@if command -v "$$(go env CC)" >/dev/null; then \
		set -x; CGO_ENABLED=1 go test -race -short -timeout $(TEST_TIMEOUT) $(RACE); \
	else echo "race: no C compiler on this machine, skipped"; fi

.PHONY: lint
lint: tools drift ## gofmt, golangci-lint, buf lint, generated code is current
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo "gofmt: run gofmt -w on the files above"; exit 1; }
	$(BUF) lint topology/proto
	$(GOLANGCI) run --build-tags real ./...

.PHONY: generate
generate: tools ## generate Go from the protobuf schemas
	cd topology/proto && PATH="$(BIN):$$PATH" $(BUF) generate

# buf writes to ../.. of its output folder, as in the real tree.
DRIFT := $(BIN)/drift

.PHONY: drift
drift: tools
	@rm -rf $(DRIFT) && mkdir -p $(DRIFT)/topology/proto
	@cd topology/proto && PATH="$(BIN):$$PATH" $(BUF) generate -o $(DRIFT)/topology/proto
	@diff -r $(DRIFT)/topology/tidemarkv1 topology/tidemarkv1 >/dev/null || \
		{ echo "topology/tidemarkv1 is not what topology/proto generates: run make generate"; exit 1; }
	@rm -rf $(DRIFT)

.PHONY: bench
bench: build ## measure; prints ratios to this machine's ceilings (BENCH=name chooses)
	go run ./bench $(BENCH)

.PHONY: demo
demo: build ## traffic, two kills, verification
	./tidemark demo

# The other version of the drill two-versions: an earlier commit that passed
# everything.
PREVIOUS     := 3206819
PREVIOUS_BIN := $(BIN)/tidemark-previous

.PHONY: previous
previous: ## build the binary of an earlier version, for the drill two-versions
	@if [ -x $(PREVIOUS_BIN) ] && [ "$$(cat $(PREVIOUS_BIN).commit 2>/dev/null)" = $(PREVIOUS) ]; then exit 0; fi; \
	mkdir -p $(BIN) && rm -f $(PREVIOUS_BIN) $(PREVIOUS_BIN).commit; \
	if ! git cat-file -e '$(PREVIOUS)^{commit}' 2>/dev/null; then \
		echo "previous: commit $(PREVIOUS) is not in this clone (git fetch --unshallow brings it): the drill two-versions will be skipped"; \
		exit 0; \
	fi; \
	src=$$(mktemp -d) && trap 'rm -rf "$$src"' EXIT && git archive $(PREVIOUS) | tar -x -C "$$src" && \
		go build -C "$$src" -trimpath -ldflags '-s -w' -o $(PREVIOUS_BIN) ./cmd/tidemark && echo $(PREVIOUS) >$(PREVIOUS_BIN).commit

# SEED chooses what happens when; the report names it.
DRILL := ./tidemark drill run $(if $(SEED),--seed $(SEED))

.PHONY: torture
torture: build previous ## break everything for about 20 minutes, then compare (LONG=1: an hour; SEED=n)
	$(DRILL) $(if $(LONG),torture-long,torture) --parallel 3

.PHONY: torture-short
torture-short: build previous ## three minutes of torture, as CI runs it (SEED=n)
	$(DRILL) torture-short --parallel 2

.PHONY: torture-real
torture-real: build previous ## a short round of torture on the Kafka of make real-up (SEED=n, PARALLEL=n)
	@go run ./real status
	$(DRILL) torture-real $(if $(PARALLEL),--parallel $(PARALLEL)) \
		--real-kafka "$$(sed -n 's/^KAFKA=//p' .real/endpoints)" --brokers-command 'go run ./real'

.PHONY: torture-proof
torture-proof: build ## show that the torture can fail: each mechanism switched off, one at a time
	$(DRILL) --self-test --parallel 3

.PHONY: tools
tools: ## install the pinned tools into .bin/
	@mkdir -p $(BIN)
	$(call install,buf,github.com/bufbuild/buf/cmd/buf,$(BUF_VERSION))
	$(call install,protoc-gen-go,google.golang.org/protobuf/cmd/protoc-gen-go,$(PROTOC_GO_VERSION))
	$(call install,protoc-gen-go-vtproto,github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto,$(VTPROTO_VERSION))
	$(call install,protoc-gen-connect-go,connectrpc.com/connect/v2/cmd/protoc-gen-connect-go,$(CONNECT_VERSION))
	$(call install,golangci-lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,$(GOLANGCI_VERSION))

.PHONY: clean
clean: ## remove what was built; .tidemark (data) stays
	rm -rf tidemark $(BIN)

# A real Apache Kafka from its Maven jars, in .real/: docs/real-kafka.md.
.PHONY: real-up
real-up: ## start a real Kafka (BROKERS=3; DEBEZIUM=1: and Debezium)
	@go run ./real up $(if $(BROKERS),--brokers $(BROKERS)) $(if $(DEBEZIUM),--debezium)

.PHONY: real-down
real-down: ## stop it (WIPE=1 removes its data)
	@go run ./real down $(if $(WIPE),--wipe)

# Packages whose tests run on the embedded broker and on a real one alike.
REAL := ./internal/kafkaadmin ./internal/gokakit ./processors/... ./views ./emitters/cdc ./internal/verify

.PHONY: test-real
test-real: ## run the broker's tests on the Kafka of make real-up
	@go run ./real status
	TIDEMARK_TEST_KAFKA="$$(sed -n 's/^KAFKA=//p' .real/endpoints)" go test -count=1 -p 1 -timeout $(TEST_TIMEOUT) $(REAL)
	go test -count=1 -tags real -timeout $(TEST_TIMEOUT) ./real
	$(MAKE) --no-print-directory test-redis

.PHONY: test-redis
test-redis: ## run the cache's tests on a real Redis and a Redis Cluster, started from redis-server in PATH
	@command -v redis-server redis-cli >/dev/null || { echo "test-redis: redis-server and redis-cli are not in PATH (Debian: apt-get install redis-server)"; exit 1; }
	go test -count=1 -tags real -timeout $(TEST_TIMEOUT) ./internal/cache ./internal/limits
	go test -count=1 -tags real -timeout $(TEST_TIMEOUT) -run 'E5.*/redis-server' ./processors/likers

.PHONY: bench-real
bench-real: ## the built-in emitter beside Debezium, on what make real-up DEBEZIUM=1 runs
	@go run ./real status
	@. .real/endpoints && TIDEMARK_BENCH_KAFKA=$$KAFKA TIDEMARK_BENCH_CONNECT=$$CONNECT \
		TIDEMARK_BENCH_CONNECT_PID=$$(cat .real/pids/connect) go run ./bench feed feed-latency
