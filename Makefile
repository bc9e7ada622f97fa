# Every command of this repository. `make` or `make help` lists them.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The nested modules see the root module of this checkout through go.work.
MODULES := . integration examples bench

# The race detector needs a C compiler. `make test RACE=` tests without it.
RACE     ?= -race
POSTGRES_VERSIONS := 14 15 16 17 18
FUZZTIME ?= 20s

# Tools run from source at these versions; the build cache keeps them.
GOLANGCI_LINT := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK   := go run golang.org/x/vuln/cmd/govulncheck@v1.9.0

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: versions ## every test, on real servers: installs and starts PostgreSQL, Kafka and PgBouncer, or uses Docker
	go vet ./... && go test $(RACE) ./...
	cd examples && go vet ./... && go test $(RACE) ./...
	cd bench && go vet ./... && go test $(RACE) ./...
	cd integration && go vet ./... && go test $(RACE) -count=1 -timeout 30m ./...

# First of all: what has to be installed is installed here, once, and -v shows which servers the tests will meet.
.PHONY: versions
versions:
	cd integration && go test $(RACE) -count=1 -v -timeout 30m -run '^TestServersTellTheirVersions$$' ./stack

.PHONY: test-fast
test-fast: ## the tests that need no server
	go test ./...
	cd examples && go test ./...

.PHONY: test-matrix
test-matrix: ## the store's tests on PostgreSQL 14, 15, 16, 17 and 18
	cd integration && for version in $(POSTGRES_VERSIONS); do \
		echo "== PostgreSQL $$version"; \
		ONCEWARD_TEST_POSTGRES_VERSION=$$version go test $(RACE) -count=1 -v -timeout 10m -run '^TestPostgresTellsItsVersion$$' ./stack; \
		ONCEWARD_TEST_POSTGRES_VERSION=$$version go test $(RACE) -count=1 -timeout 20m ./postgres/...; \
	done

.PHONY: smoke
smoke: ## the Docker path of the test servers, on images made here (root; installs an engine)
	integration/smoke/run.sh

.PHONY: quickstart
quickstart: ## duplicated, crashed and redelivered messages, one effect each; needs nothing but Go
	go run ./examples/quickstart

.PHONY: vet
vet: ## go vet in every module
	for module in $(MODULES); do (cd $$module && go vet ./...); done

.PHONY: lint
lint: ## golangci-lint in every module, formatting included
	for module in $(MODULES); do echo "== $$module"; (cd $$module && $(GOLANGCI_LINT) run --allow-parallel-runners ./...); done

.PHONY: tidy-check
tidy-check: ## go.mod and go.sum of every module hold what they should
	for module in $(MODULES); do echo "== $$module"; (cd $$module && go mod tidy -diff); done

.PHONY: vulncheck
vulncheck: ## known vulnerabilities in what the modules use
	for module in $(MODULES); do echo "== $$module"; (cd $$module && $(GOVULNCHECK) ./...); done

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME each
	grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's/:func /\t/' | while IFS=$$'\t' read -r file target; do \
		(cd "$$(dirname "$$file")" && go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) .); \
	done

.PHONY: bench-inbox
bench-inbox: ## the inbox against the same SQL written by hand, on PostgreSQL
	cd bench && go run ./inbox

.PHONY: bench-kafka
bench-kafka: ## the consumer against the loop a good engineer writes by hand, on Kafka
	cd bench && go run ./kafka


.PHONY: bench-outbox
bench-outbox: ## the outbox against SKIP LOCKED with DELETE, Watermill's forwarder and kafka-go, on PostgreSQL and Kafka
	cd bench && go run ./outbox