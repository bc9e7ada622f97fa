module github.com/onceward/onceward/bench

go 1.26.0

require (
	github.com/jackc/pgx/v5 v5.13.0
	github.com/onceward/onceward v0.0.0
	github.com/segmentio/kafka-go v0.4.51
	golang.org/x/sync v0.24.0
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/pierrec/lz4/v4 v4.1.33 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/onceward/onceward => ../
