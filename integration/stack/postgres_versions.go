package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// postgresImageMajor is the version of the Docker image when none is wanted.
const postgresImageMajor = "17"

// embeddedVersions are the builds of PostgreSQL that Maven brings for each major version: initdb, pg_ctl and postgres only.
var embeddedVersions = map[string]string{
	"14": "14.20.0",
	"15": "15.15.0",
	"16": "16.11.0",
	"17": "17.7.0",
	"18": "18.1.0",
}

// wantedPostgres is the major version that the environment asks for, or "" for whatever is there.
func wantedPostgres() (string, error) {
	major := os.Getenv("ONCEWARD_TEST_POSTGRES_VERSION")
	if _, known := embeddedVersions[major]; major != "" && !known {
		return "", fmt.Errorf("ONCEWARD_TEST_POSTGRES_VERSION is %q: set it to 14, 15, 16, 17 or 18, or unset it", major)
	}
	return major, nil
}

// embeddedPostgres returns the folder of the programs of one major version, fetched once per machine.
func embeddedPostgres(ctx context.Context, major string) (string, error) {
	err := need{
		what:     "PostgreSQL " + major + " from Maven",
		packages: []string{"openjdk-17-jdk-headless", "maven", "unzip", "xz-utils"},
		find:     onPath("mvn", "unzip", "tar", "xz"),
		instead:  "start Docker, or unset ONCEWARD_TEST_POSTGRES_VERSION",
	}.ensure(ctx)
	if err != nil {
		return "", err
	}
	version := embeddedVersions[major]
	dir, err := fetched(ctx, "postgres-"+version, func(ctx context.Context, dir string) error {
		arch := runtime.GOARCH
		if arch == "arm64" {
			arch = "arm64v8"
		}
		artifact := "embedded-postgres-binaries-" + runtime.GOOS + "-" + arch
		if err := maven(ctx, dir, "dependency:copy", "-Dartifact=io.zonky.test.postgres:"+artifact+":"+version, "-DoutputDirectory="+dir); err != nil {
			return err
		}
		var self *account
		jar := filepath.Join(dir, artifact+"-"+version+".jar")
		if err := self.run(ctx, dir, "unzip", "-q", jar, "*.txz"); err != nil {
			return err
		}
		archives, err := filepath.Glob(filepath.Join(dir, "*.txz"))
		if err != nil || len(archives) != 1 {
			return fmt.Errorf("%s holds %d archives, want 1", jar, len(archives))
		}
		if err := self.run(ctx, dir, "tar", "-xJf", archives[0]); err != nil {
			return err
		}
		return os.Remove(archives[0])
	})
	return filepath.Join(dir, "bin"), err
}
