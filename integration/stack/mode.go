package stack

import (
	"context"
	"fmt"
	"os"
	"sync"
)

// source is where a server comes from.
type source string

const (
	native source = "native"
	docker source = "docker"
)

// pick decides where a service comes from and, for Docker, brings its image. See the package's documentation for the rule.
func pick(ctx context.Context, service, image string) (source, error) {
	switch wish := source(os.Getenv("ONCEWARD_TEST_STACK")); wish {
	case native:
		return native, nil
	case docker:
		if err := haveImage(ctx, image); err != nil {
			return "", fmt.Errorf("ONCEWARD_TEST_STACK=docker: %w. Start Docker with access to the image, or set ONCEWARD_TEST_STACK=native", err)
		}
		return docker, nil
	case "":
		if err := haveImage(ctx, image); err != nil {
			announceOnce(fmt.Sprintf("%s is native: %v", service, err))
			return native, nil
		}
		return docker, nil
	default:
		return "", fmt.Errorf("ONCEWARD_TEST_STACK is %q: set it to native or docker, or unset it", wish)
	}
}

var announced sync.Map

// announceOnce says a line that several starts would repeat.
func announceOnce(line string) {
	if _, known := announced.LoadOrStore(line, true); !known {
		announcef("%s", line)
	}
}
