package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	dockercontainer "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

const (
	enginePatience  = 5 * time.Second  // for the engine's first answer
	pullPatience    = 5 * time.Minute  // for one image
	orderlyPatience = 30 * time.Second // for a server that was asked to stop
)

// engine is the Docker engine that testcontainers finds (DOCKER_HOST, contexts, the usual sockets). Servers' ports are
// published on its loopback interface, so it has to be this machine's.
var engine = sync.OnceValues(func() (*testcontainers.DockerProvider, error) {
	ctx, cancel := context.WithTimeout(context.Background(), enginePatience)
	defer cancel()
	e, err := testcontainers.NewDockerProvider()
	if err == nil {
		err = e.Health(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("no Docker engine answers: %w", err)
	}
	return e, nil
})

// haveImage is nil once the engine holds the image, pulled if need be.
func haveImage(ctx context.Context, image string) error {
	e, err := engine()
	if err != nil {
		return err
	}
	if _, err := e.Client().ImageInspect(ctx, image); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pullPatience)
	defer cancel()
	if err := e.PullImage(ctx, image); err != nil {
		return fmt.Errorf("the Docker engine has no image %s and cannot pull it: %w", image, err)
	}
	return nil
}

// container is a server in a container. It is made by the first start; later ones start the same container again.
type container struct {
	image   string
	ports   map[int]int // port inside to port on this machine's loopback interface
	options []testcontainers.ContainerCustomizer

	made *testcontainers.DockerContainer
}

func (c *container) start(ctx context.Context) error {
	if c.made != nil {
		e, err := engine()
		if err != nil {
			return err
		}
		_, err = e.Client().ContainerStart(ctx, c.made.GetContainerID(), client.ContainerStartOptions{})
		return err
	}
	// A fixed port on this side: one that Docker chooses is another one after each restart.
	bindings := network.PortMap{}
	var exposed []string
	for inside, outside := range c.ports {
		name := strconv.Itoa(inside) + "/tcp"
		port, err := network.ParsePort(name)
		if err != nil {
			return fmt.Errorf("port %d of the container: %w", inside, err)
		}
		bindings[port] = []network.PortBinding{{HostIP: netip.AddrFrom4([4]byte{127, 0, 0, 1}), HostPort: strconv.Itoa(outside)}}
		exposed = append(exposed, name)
	}
	options := append([]testcontainers.ContainerCustomizer{
		testcontainers.WithExposedPorts(exposed...),
		testcontainers.WithHostConfigModifier(func(h *dockercontainer.HostConfig) { h.PortBindings = bindings }),
	}, c.options...)
	made, err := testcontainers.Run(ctx, c.image, options...)
	c.made = made // also with an error: it may exist and have to be removed
	for inside, outside := range c.ports {
		published.Store(loopback(outside), publication{c, inside})
	}
	return err
}

// publication is a port of a container; published maps its address on this machine (host:port) to it.
type publication struct {
	of   *container
	port int
}

var published sync.Map

// containerAddress translates an address on this machine to the one at which other containers reach the same server. ok is
// false if no container of the stack is published there.
func containerAddress(ctx context.Context, address string) (inside string, ok bool, err error) {
	found, ok := published.Load(address)
	if !ok {
		return "", false, nil
	}
	p, _ := found.(publication)
	ip, err := p.of.made.ContainerIP(ctx)
	if err != nil {
		return "", false, fmt.Errorf("ask for the address of the container behind %s: %w", address, err)
	}
	return net.JoinHostPort(ip, strconv.Itoa(p.port)), true, nil
}

func (c *container) stop(ctx context.Context) error {
	return c.ask(ctx, func(api client.APIClient, id string) error {
		patience := int(orderlyPatience.Seconds())
		_, err := api.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &patience})
		return err
	})
}

func (c *container) kill(ctx context.Context) error {
	return c.ask(ctx, func(api client.APIClient, id string) error {
		if _, err := api.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			return err
		}
		return poll(ctx, func(ctx context.Context) error {
			if c.alive(ctx) == nil {
				return errors.New("the container still runs after SIGKILL")
			}
			return nil
		})
	})
}

func (c *container) alive(ctx context.Context) error {
	state, err := c.made.State(ctx)
	if err != nil {
		return fmt.Errorf("ask for the container's state: %w", err)
	}
	if !state.Running {
		return fmt.Errorf("the container ended with status %d", state.ExitCode)
	}
	return nil
}

func (c *container) discard(ctx context.Context) error {
	if c.made == nil {
		return nil
	}
	return c.made.Terminate(ctx, testcontainers.StopTimeout(0))
}

func (c *container) tail(ctx context.Context) string {
	logs, err := c.made.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer logs.Close()
	text, err := io.ReadAll(logs)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-tailLength):])
}

func (c *container) ask(ctx context.Context, f func(api client.APIClient, id string) error) error {
	e, err := engine()
	if err != nil {
		return err
	}
	if err := c.alive(ctx); err != nil {
		return nil //nolint:nilerr // a server that is down stays down
	}
	return f(e.Client(), c.made.GetContainerID())
}

// file is a file of the stack's inside a container, readable by every account in it.
func file(path string, content []byte) testcontainers.ContainerFile {
	return testcontainers.ContainerFile{Reader: bytes.NewReader(content), ContainerFilePath: path, FileMode: 0o644}
}
