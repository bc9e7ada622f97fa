package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// consumerEnv makes this program run as the consumer.
const consumerEnv = "ONCEWARD_QUICKSTART_CONSUMER"

// process is a consumer in a process of its own, seen from the parent.
type process struct {
	command   *exec.Cmd
	stdin     io.Closer
	sightings chan sighting // closed when the process has ended
	stderr    bytes.Buffer
}

// startConsumer runs this program a second time, as the consumer. It is killed
// when ctx ends.
func startConsumer(ctx context.Context, j *job) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program to run it as the consumer: %w", err)
	}
	p := &process{command: exec.CommandContext(ctx, self), sightings: make(chan sighting)}
	p.command.Env = append(os.Environ(), consumerEnv+"=1")
	p.command.Stderr = &p.stderr
	stdin, err := p.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("starting the consumer: %w", err)
	}
	go func() {
		defer close(p.sightings)
		decoder := json.NewDecoder(stdout)
		for {
			var s sighting
			if decoder.Decode(&s) != nil {
				return // the end of the pipe, or half a line cut by the kill
			}
			p.sightings <- s
		}
	}()
	if err := json.NewEncoder(stdin).Encode(j); err != nil {
		return nil, errors.Join(fmt.Errorf("telling the consumer its job: %w", err), p.stop(&sighting{}))
	}
	return p, nil
}

// kill ends the process at once, with SIGKILL where there are signals. What it
// had told before still counts.
func (p *process) kill(told *sighting) error {
	if err := p.command.Process.Kill(); err != nil {
		return errors.Join(fmt.Errorf("killing the consumer: %w", err), p.stop(told))
	}
	if p.end(told) == nil {
		return errors.New("the consumer ended well although it was killed")
	}
	return nil
}

// stop asks the process to finish what it has in hand, and waits for that.
func (p *process) stop(told *sighting) error {
	_ = p.stdin.Close()
	return p.end(told)
}

// end waits for the end of the process; its last words are part of the error.
func (p *process) end(told *sighting) error {
	for s := range p.sightings {
		told.add(s)
	}
	err := p.command.Wait()
	_ = p.stdin.Close()
	if err != nil {
		return fmt.Errorf("the consumer ended with %w:\n%s", err, strings.TrimSpace(p.stderr.String()))
	}
	return nil
}

// superviseConsumer runs one consumer until it stands still at the moment of
// its crash, and kills it there; or until the topic is drained, and stops it.
// It returns the sighting of the crash, or a zero one. Everything the consumer
// told is added to told.
func superviseConsumer(ctx context.Context, j *job, drained func() (bool, error), told *sighting) (sighting, error) {
	p, err := startConsumer(ctx, j)
	if err != nil {
		return sighting{}, err
	}
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case s, running := <-p.sightings:
			if !running {
				return s, errors.Join(p.end(told), errors.New("the consumer ended before the topic was drained"))
			}
			told.add(s)
			if s.Moment != "" {
				return s, p.kill(told)
			}
		case <-look.C:
			done, err := drained()
			if err != nil {
				_ = p.command.Process.Kill() // it may have ended by itself
				return sighting{}, errors.Join(err, p.end(told))
			}
			if done {
				return sighting{}, p.stop(told)
			}
		}
	}
}
